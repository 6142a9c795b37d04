# SPDX-License-Identifier: Apache-2.0
"""Requests to one API server over kept connections: the only module that imports urllib3."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import orjson
import urllib3
from urllib3.exceptions import (
    HTTPError,
    InsecureRequestWarning,
    NewConnectionError,
    ProtocolError,
    SSLError,
)

from gpuslice.runtime.kube.backoff import jitter_of_its_own
from gpuslice.runtime.kube.endpoint import Cluster
from gpuslice.runtime.kube.errors import KubeError, UnauthorizedError, UnavailableError, error_of

POOL_SIZE: Final = 128
"""Connections kept: as many as the webhook has threads. None is opened before it is needed."""
CONNECT_SECONDS: Final = 5.0
FIRST_PAUSE_SECONDS: Final = 0.05
MAX_TRIES: Final = 4
_READ_BYTES: Final = 1 << 16

# A peer that vanished without a word (a node that lost power) is noticed after half a minute.
_KEEPALIVE: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call, ready to be sent."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    """What to send as JSON; None for no body."""
    content_type: str = "application/json"

    @property
    def target(self) -> str:
        """The path with its query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


class Stream:
    """The lines of an answer that doesn't end: a watch."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response

    def lines(self) -> Iterator[bytes]:
        """Yield each line as it arrives, and an empty one for nothing but a sign of life.

        Raises:
            UnavailableError: where the connection breaks or stays silent for too long.
        """
        rest = b""
        try:
            for piece in self._response.stream(_READ_BYTES):
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines or (b"",)
        except (HTTPError, OSError, ValueError, AttributeError) as err:
            # The last two are what a TLS socket raises that another thread has shut.
            raise UnavailableError(f"the watch broke: {err}") from err

    def cut(self) -> None:
        """End it from another thread: a reader wakes at once."""
        with contextlib.suppress(HTTPError, OSError, ValueError, RuntimeError):
            self._response.shutdown()

    def close(self) -> None:
        """Give the connection up, by the thread that reads."""
        with contextlib.suppress(HTTPError, OSError, ValueError):
            self._response.close()


class Transport:
    """Sends requests of any number of threads, and tries again where that is safe.

    Args:
        cluster: where to, and as whom.
        user_agent: what the API server's audit log shows.
        clock: seconds, only ever forwards.
        sleep: waits between tries.
        jitter: spreads tries: a number in [0, 1).
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        user_agent: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = jitter_of_its_own,
    ) -> None:
        self._cluster = cluster
        self._user_agent = user_agent
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._guard = threading.Lock()
        self._pool = self._connect()
        self._prefix = urlsplit(cluster.server).path.rstrip("/")

    def _connect(self) -> urllib3.HTTPConnectionPool:
        parts = urlsplit(self._cluster.server)
        context = self._cluster.tls()
        common: dict[str, Any] = {
            "port": parts.port,
            "maxsize": POOL_SIZE,
            "retries": False,
            "socket_options": _KEEPALIVE,
        }
        host = parts.hostname or ""
        if context is None:
            return urllib3.HTTPConnectionPool(host, **common)
        if self._cluster.insecure:
            # The user asked for it; once per connection would drown the log.
            warnings.simplefilter("ignore", InsecureRequestWarning)
        name = self._cluster.server_name or None
        return urllib3.HTTPSConnectionPool(
            host,
            ssl_context=context,
            server_hostname=name,
            assert_hostname=False if self._cluster.insecure else name,
            **common,
        )

    def close(self) -> None:
        """Close the connections that no thread is using."""
        self._pool.close()

    def send(self, request: Request, *, timeout_seconds: float) -> dict[str, Any]:
        """Return the answer's JSON object.

        Args:
            request: the call.
            timeout_seconds: for all tries together.

        Raises:
            KubeError: as `errors` lists them.
        """
        deadline = self._clock() + timeout_seconds
        is_fresh = False
        for attempt in range(1, MAX_TRIES + 1):
            try:
                return self._once(request, deadline, is_fresh=is_fresh)
            except UnauthorizedError:
                # The token may have been renewed less than a minute ago.
                if is_fresh:
                    raise
                is_fresh = True
            except UnavailableError as err:
                pause = self._pause(request, err, attempt)
                if pause is None or self._clock() + pause >= deadline:
                    raise
                self._sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _pause(self, request: Request, err: UnavailableError, attempt: int) -> float | None:
        """Return how long to wait before another try, None where there must be none.

        What the server said it did not begin (429, 503 with Retry-After) and what it never heard
        (no connection) is safe for any method; a broken connection only for a read, since the
        request may have been carried out.
        """
        if attempt == MAX_TRIES:
            return None
        if err.code in (429, 503) and err.retry_after_seconds is not None:
            return err.retry_after_seconds * (1 + self._jitter() / 4)
        cause = err.__cause__
        if isinstance(cause, NewConnectionError):
            return FIRST_PAUSE_SECONDS * (1 << attempt - 1) * (0.5 + self._jitter())
        if request.method == "GET" and isinstance(cause, ProtocolError) and attempt == 1:
            return 0.0
        return None

    def _once(self, request: Request, deadline: float, *, is_fresh: bool) -> dict[str, Any]:
        left = max(0.001, deadline - self._clock())
        response = self._open(request, left, is_fresh=is_fresh)
        try:
            pieces = []
            for piece in response.stream(_READ_BYTES):
                if self._clock() > deadline:
                    raise UnavailableError(f"{request.method} {request.path}: no end of the answer")
                pieces.append(piece)
            answer = b"".join(pieces)
        except (HTTPError, OSError) as err:
            response.close()
            raise UnavailableError(f"{request.method} {request.path}: {err}") from err
        except KubeError:
            response.close()
            raise
        response.release_conn()
        return _decoded(response, answer)

    def stream(self, request: Request, *, silence_seconds: float, is_fresh: bool = False) -> Stream:
        """Return the lines of a watch.

        Args:
            request: with the query that makes it a watch.
            silence_seconds: a connection that is silent for longer counts as dead.
            is_fresh: whether to read the token anew.

        Raises:
            KubeError: as `errors` lists them.
        """
        response = self._open(request, silence_seconds, is_fresh=is_fresh)
        if response.status == 200:
            return Stream(response)
        try:
            answer = response.read(_READ_BYTES)
        except (HTTPError, OSError):
            answer = b""
        finally:
            response.close()
        _decoded(response, answer)
        raise UnavailableError(f"a watch was answered with {response.status}")

    def _open(
        self, request: Request, read_seconds: float, *, is_fresh: bool
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": self._user_agent}
        if token := self._cluster.token(fresh=is_fresh):
            headers["Authorization"] = f"Bearer {token}"
        body = None
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            body = orjson.dumps(request.body)
        pool = self._pool
        try:
            return pool.urlopen(
                request.method,
                self._prefix + request.target,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(
                    connect=min(CONNECT_SECONDS, read_seconds), read=read_seconds
                ),
                redirect=False,
                preload_content=False,
            )
        except SSLError as err:
            self._renew(pool)
            raise UnavailableError(f"{request.method} {request.path}: {err}") from err
        except (HTTPError, OSError) as err:
            raise UnavailableError(f"{request.method} {request.path}: {err}") from err

    def _renew(self, failed: urllib3.HTTPConnectionPool) -> None:
        """Read the certificate files again: they may have been rotated."""
        with self._guard:
            if self._pool is failed:
                self._pool = self._connect()
                failed.close()


def _decoded(response: urllib3.BaseHTTPResponse, answer: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(answer) if answer else {}
    except orjson.JSONDecodeError:
        # A proxy's page, or /healthz.
        content = {"message": answer[:500].decode(errors="replace").strip()}
    if not isinstance(content, dict):
        content = {}
    if 200 <= response.status < 300:
        return content
    after = response.headers.get("Retry-After", "")
    raise error_of(
        content,
        response.status,
        retry_after_seconds=float(after) if after.isascii() and after.isdecimal() else None,
    )
