# SPDX-License-Identifier: Apache-2.0
"""A server that says what a script says, also what no good server would say."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass(frozen=True)
class Answer:
    """One answer; `close` hangs up after it."""

    code: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    close: bool = False

    def encoded(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return (
            f"HTTP/1.1 {self.code} x\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body
        )


HANG_UP = object()
SILENCE = object()
Step = Answer | Callable[[socket.socket], None] | object


def chunked(*lines: Any, end: bool = True) -> Callable[[socket.socket], None]:
    """Return a step that streams lines; without the end, the connection stays open."""

    def step(connection: socket.socket) -> None:
        parts = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]
        for line in lines:
            text = json.dumps(line).encode() + b"\n"
            parts.append(b"%x\r\n%s\r\n" % (len(text), text))
        connection.sendall(b"".join(parts) + (b"0\r\n\r\n" if end else b""))

    return step


class Scripted:
    """Takes one step of its script for each request, and repeats the last."""

    def __init__(self, *steps: Step, context: ssl.SSLContext | None = None) -> None:
        self.script = deque(steps)
        self.asked: list[Asked] = []
        self.changed = threading.Condition()
        self._context = context
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._count = 0
        self._stopping = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        scheme = "https" if self._context else "http"
        return f"{scheme}://localhost:{self._listening.getsockname()[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Scripted]:
        try:
            yield self
        finally:
            self._stopping.set()
            # A blocked accept wakes only when the socket is shut down.
            self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            for connection in self._open:
                self._hang_up(connection)

    def wait_asked(self, count: int, timeout_seconds: float = 5.0) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.asked) >= count, timeout_seconds)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._count += 1
            threading.Thread(
                target=self._serve, args=(connection, self._count), daemon=True
            ).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            self._open.append(connection)
            reader = connection.makefile("rb")
            while line := reader.readline():
                method, target, _ = line.decode().split(" ")
                headers = {}
                while (raw := reader.readline().decode().strip()) != "":
                    name, _, value = raw.partition(": ")
                    headers[name.lower()] = value
                body = reader.read(int(headers.get("content-length", 0)))
                with self.changed:
                    step = self.script.popleft() if len(self.script) > 1 else self.script[0]
                    self.asked.append(Asked(method, target, headers, body, number))
                    self.changed.notify_all()
                if not self._take(step, connection):
                    break
        self._hang_up(connection)

    def _hang_up(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
        connection.close()

    def _take(self, step: Step, connection: socket.socket) -> bool:
        if step is HANG_UP:
            return False
        if step is SILENCE:
            self._stopping.wait(30)
            return False
        if isinstance(step, Answer):
            connection.sendall(step.encoded())
            return not step.close
        assert callable(step)
        step(connection)
        return True
