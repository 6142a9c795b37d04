# SPDX-License-Identifier: Apache-2.0
"""Calling a webhook: HTTPS with its CA, kept-alive connections, one deadline."""

from __future__ import annotations

import base64
import http.client
import math
import select
import ssl
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Address = tuple[str, int]

IDLE_LIMIT = 8
"""Connections kept per webhook."""
RETRIES = 10
_ANSWER_LIMIT_BYTES = 16 * 1024 * 1024


class CalloutError(Exception):
    """A call that brought no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a webhook is, as its clientConfig says it."""

    url: str
    """As it is named in messages; its host is what the certificate must bear."""
    address: Address
    """Where to connect."""
    ca_bundle: str
    """Base64 of PEM; empty for the system's authorities."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def path(self) -> str:
        return urlsplit(self.url).path or "/"


def endpoint(
    config: Mapping[str, Any], resolve: Callable[[str, str, int], Address] | None
) -> Endpoint:
    """Read a clientConfig.

    Args:
        config: with a `url`, or with a `service` that `resolve` finds.
        resolve: from a service's namespace, name and port to an address.

    Raises:
        CalloutError: for a service that can't be found.
    """
    ca_bundle = config.get("caBundle") or ""
    if "url" in config:
        parts = urlsplit(config["url"])
        address = (parts.hostname or "", parts.port or 443)
        return Endpoint(url=config["url"], address=address, ca_bundle=ca_bundle)
    service = config["service"]
    namespace, name, port = service["namespace"], service["name"], service.get("port", 443)
    if resolve is None:
        raise CalloutError(f'service "{name}" not found')
    path = service.get("path") or "/"
    url = f"https://{name}.{namespace}.svc:{port}{path if path.startswith('/') else '/' + path}"
    return Endpoint(url=url, address=resolve(namespace, name, port), ca_bundle=ca_bundle)


@lru_cache(maxsize=64)
def _context(ca_bundle: str) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cadata=base64.b64decode(ca_bundle).decode("ascii") if ca_bundle else None
    )
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class _Connection(http.client.HTTPConnection):
    """A connection whose certificate is checked against a name that it needn't connect to."""

    def __init__(self, target: Endpoint, timeout_seconds: float) -> None:
        super().__init__(*target.address, timeout=timeout_seconds)
        self._context = _context(target.ca_bundle)
        self._server_name = target.host

    def connect(self) -> None:
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self._server_name)

    def is_stale(self) -> bool:
        """Say whether the other side has closed it: an idle connection has nothing to read."""
        return self.sock is None or bool(select.select([self.sock], [], [], 0)[0])


class Callout:
    """Posts to webhooks. Any number of threads may call at once."""

    def __init__(self) -> None:
        self._idle: dict[Endpoint, list[_Connection]] = defaultdict(list)
        self._guard = threading.Lock()
        self._closed = threading.Event()

    def post(self, target: Endpoint, body: bytes, *, timeout_seconds: float) -> bytes:
        """Post a body and return the answer's.

        Raises:
            CalloutError: for any answer but 200, and for none within the timeout.
        """
        deadline = time.monotonic() + timeout_seconds
        asked = f"{target.url}?timeout={math.ceil(timeout_seconds)}s"
        for _ in range(RETRIES):
            try:
                code, retry_after, answer = self._once(target, body, deadline)
            except TimeoutError as err:
                raise CalloutError(f'Post "{asked}": context deadline exceeded') from err
            except (OSError, ValueError, http.client.HTTPException) as err:
                raise CalloutError(f'Post "{asked}": {str(err) or type(err).__name__}') from err
            if code == 200:
                return answer
            if not retry_after.isdigit() or (code != 429 and code < 500):
                break
            if int(retry_after) > deadline - time.monotonic():
                raise CalloutError(f'Post "{asked}": context deadline exceeded')
            if self._closed.wait(int(retry_after)):
                break
        text = answer[:200].decode("utf-8", "replace").strip()
        raise CalloutError(f"the server answered {code}: {text}")

    def close(self) -> None:
        self._closed.set()
        with self._guard:
            connections = [one for kept in self._idle.values() for one in kept]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def _once(self, target: Endpoint, body: bytes, deadline: float) -> tuple[int, str, bytes]:
        connection = self._take(target, deadline)
        try:
            if connection.sock is None:
                connection.connect()
            _limit(connection, deadline)
            connection.request(
                "POST",
                f"{target.path}?timeout={math.ceil(max(deadline - time.monotonic(), 0))}s",
                body,
                {
                    "Content-Type": "application/json",
                    "Accept": "application/json, */*",
                    "User-Agent": "kube-apiserver-admission",
                    "Host": urlsplit(target.url).netloc,
                },
            )
            response = connection.getresponse()
            _limit(connection, deadline)
            answer = response.read(_ANSWER_LIMIT_BYTES)
        except BaseException:
            connection.close()
            raise
        self._give_back(target, connection)
        return response.status, response.getheader("Retry-After") or "", answer

    def _take(self, target: Endpoint, deadline: float) -> _Connection:
        while True:
            with self._guard:
                kept = self._idle[target]
                connection = kept.pop() if kept else None
            if connection is None:
                return _Connection(target, max(deadline - time.monotonic(), 0.001))
            if not connection.is_stale():
                return connection
            connection.close()

    def _give_back(self, target: Endpoint, connection: _Connection) -> None:
        with self._guard:
            kept = self._idle[target]
            if connection.sock is not None and len(kept) < IDLE_LIMIT and not self._closed.is_set():
                kept.append(connection)
                return
        connection.close()


def _limit(connection: _Connection, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    if connection.sock is not None:
        connection.sock.settimeout(left)
