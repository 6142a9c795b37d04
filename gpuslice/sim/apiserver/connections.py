# SPDX-License-Identifier: Apache-2.0
"""The HTTP side: one thread per connection, keep-alive, one write per answer."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

from gpuslice.sim.apiserver import failures
from gpuslice.sim.apiserver.calls import Answer, refused

if TYPE_CHECKING:
    from gpuslice.sim.apiserver.dispatch import Dispatch, OpenWatch

HANDSHAKE_SECONDS = 10.0
BODY_LIMIT_BYTES = 3 * 1024 * 1024
WARNINGS_LIMIT = 4096
"""Characters of all warnings of one answer, beyond which each is cut."""
WARNING_CUT = 256
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Listener(ThreadingHTTPServer):
    """Accepts connections. TLS begins in the connection's thread: a silent client blocks none."""

    daemon_threads = True
    # Threads of silent connections are ended by closing their sockets, not waited for.
    block_on_close = False
    request_queue_size = 256

    def __init__(
        self, address: tuple[str, int], dispatch: Dispatch, context: ssl.SSLContext | None
    ) -> None:
        self.dispatch = dispatch
        self.context = context
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__(address, Connection)

    def server_bind(self) -> None:
        # The stdlib's own looks up this host's name, which can take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def hold(self, connection: socket.socket) -> None:
        with self._guard:
            self._open.add(connection)

    def release(self, connection: socket.socket) -> None:
        with self._guard:
            self._open.discard(connection)

    def wake(self) -> None:
        """Take no more connections, and let `serve_forever` see at once that it shall end."""
        # Elsewhere than on Linux this may be refused; the loop then looks every half second.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """Close every connection, so that its thread ends."""
        with self._guard:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent: a client that goes away is no fault of the server's."""


class Connection(BaseHTTPRequestHandler):
    """One client's connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def _listener(self) -> Listener:
        return cast("Listener", self.server)

    def setup(self) -> None:
        if self._listener.context is not None:
            self.request.settimeout(HANDSHAKE_SECONDS)
            self.request = self._listener.context.wrap_socket(self.request, server_side=True)
            self.request.settimeout(None)
        self._listener.hold(self.request)
        super().setup()

    def finish(self) -> None:
        self._listener.release(self.request)
        with contextlib.suppress(OSError):
            super().finish()
        with contextlib.suppress(OSError):
            self.request.close()

    def handle(self) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the stdlib's name
        """Stay silent: the embedded cluster's own log would hide the product's."""

    def _serve(self) -> None:
        warnings: list[str] = []
        try:
            body = self._body()
            outcome = self._listener.dispatch.answer(
                self.command, self.path, self.headers, body, warnings.append
            )
        except failures.ApiError as err:
            outcome = refused(err)
        except OSError:
            raise  # the client is gone
        except Exception as err:  # noqa: BLE001 - as a real server: a fault in it is a 500
            traceback.print_exc()
            outcome = refused(failures.internal(repr(err)))
        if isinstance(outcome, Answer):
            self._send(outcome, warnings)
        else:
            self._stream(outcome)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - the stdlib's names

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length")
        if length is None:
            if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
                return self._chunked()
            return b""
        if int(length) > BODY_LIMIT_BYTES:
            self.close_connection = True
            raise failures.ApiError(413, "RequestEntityTooLarge", "Request entity too large")
        return self.rfile.read(int(length))

    def _chunked(self) -> bytes:
        parts: list[bytes] = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _head(self, code: int, content_type: str, more: str) -> bytes:
        closing = "Connection: close\r\n" if self.close_connection else ""
        return (
            f"HTTP/1.1 {code} {_REASONS.get(code, '')}\r\n"
            f"Content-Type: {content_type}\r\n{closing}{more}\r\n"
        ).encode("utf-8", "replace")

    def _send(self, answer: Answer, warnings: list[str]) -> None:
        more = _warnings(warnings)
        more += f"Content-Length: {len(answer.body)}\r\n"
        self.wfile.write(self._head(answer.code, answer.content_type, more) + answer.body)

    def _stream(self, opened: OpenWatch) -> None:
        watch = opened.watch
        deadline = time.monotonic() + opened.timeout_seconds
        try:
            self.wfile.write(self._head(200, "application/json", "Transfer-Encoding: chunked\r\n"))
            while (left := deadline - time.monotonic()) > 0:
                lines = watch.take(min(left, opened.bookmark_seconds))
                if lines is None:
                    break
                if lines:
                    text = b"".join(lines)
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
                elif opened.has_bookmarks:
                    opened.bookmark()
            self.wfile.write(b"0\r\n\r\n")
        finally:
            opened.close()


def _warnings(texts: list[str]) -> str:
    """Write warnings as headers. As in Kubernetes, one with a control character is lost."""
    kept = [text for text in dict.fromkeys(texts) if text and text.isprintable()]
    if sum(len(text) for text in kept) > WARNINGS_LIMIT:
        kept = [text[:WARNING_CUT] for text in kept]
    escaped = [text.replace("\\", "\\\\").replace('"', '\\"') for text in kept]
    return "".join(f'Warning: 299 - "{text}"\r\n' for text in escaped)
