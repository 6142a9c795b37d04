# SPDX-License-Identifier: Apache-2.0
"""The small HTTP server beside each half: /metrics, /healthz and /readyz."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, cast

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

State = tuple[bool, str]
"""Whether all is well, and a line that says why not."""
READ_SECONDS: Final = 10.0
"""A client that is slower than this is hung up on."""
_POLL_SECONDS: Final = 0.5
"""Between two looks whether to end; a tenth of it took 0.06 % of a core."""
_PLAIN: Final = "text/plain; charset=utf-8"


def _well() -> State:
    return True, "ok"


class StatusServer:
    """Answers probes and scrapes, each connection in a thread of its own.

    Args:
        registry: what /metrics shows.
        ready: what /readyz answers: 200 or 503, with the text.
        healthy: likewise /healthz; False makes kubelet restart the container.
        host: empty for every address, of IPv4 and IPv6.
        port: 0 for any free one.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        ready: Callable[[], State],
        healthy: Callable[[], State] = _well,
        host: str = "",
        port: int = 0,
    ) -> None:
        self._server = _Server(_listen(host, port), registry, ready, healthy)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": _POLL_SECONDS},
            name="status",
            daemon=True,
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def start(self) -> StatusServer:
        """Begin to answer."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close the port; takes up to half a second."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _listen(host: str, port: int) -> socket.socket:
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError:
            # A kernel with IPv6 switched off says so only here; a used port is told again below.
            pass
    return socket.create_server(("0.0.0.0", port))  # noqa: S104 - kubelet and Prometheus call


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        listening: socket.socket,
        registry: CollectorRegistry,
        ready: Callable[[], State],
        healthy: Callable[[], State],
    ) -> None:
        super().__init__(listening.getsockname()[:2], _Connection, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_address = listening.getsockname()
        self.registry = registry
        self.probes = {"/readyz": ready, "/healthz": healthy}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent: a client that goes away is no fault of ours."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = READ_SECONDS

    def do_GET(self) -> None:
        code, content_type, body = self._answer(self.path.partition("?")[0])
        head = (
            f"HTTP/1.1 {code} {'OK' if code == 200 else 'Not OK'}\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        # One write: two cost a client 40 ms (Nagle against delayed acknowledgement).
        self.wfile.write(head.encode() + (b"" if self.command == "HEAD" else body))

    do_HEAD = do_GET  # noqa: N815 - the stdlib's name

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        server = cast("_Server", self.server)
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(server.registry)
        probe = server.probes.get(path)
        if probe is None:
            return 404, _PLAIN, b"there are /metrics, /healthz and /readyz\n"
        is_well, text = probe()
        return (200 if is_well else 503), _PLAIN, f"{text}\n".encode()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the stdlib's name
        """Stay silent: probes come every few seconds."""
