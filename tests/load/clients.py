# SPDX-License-Identifier: Apache-2.0
"""Clients of a TLS server on the loopback address, thin enough not to be what is measured."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from dataclasses import dataclass, field

HOST = "127.0.0.1"
DEADLINE_SECONDS = 60.0


def tls_context() -> ssl.SSLContext:
    """Return what trusts anybody: it is about load, not about trust."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def connect(port: int, context: ssl.SSLContext, *, timeout_seconds: float = 10.0) -> ssl.SSLSocket:
    """Return a TLS connection."""
    raw = socket.create_connection((HOST, port), timeout=timeout_seconds)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return context.wrap_socket(raw, server_hostname="localhost")
    except BaseException:
        raw.close()
        raise


def request(body: bytes, path: str = "/admit/pods") -> bytes:
    """Return a whole POST."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def answer_length(received: bytes) -> int | None:
    """Return how long an answer is in all, None while its head isn't whole."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = received[:end].lower()
    at = head.find(b"content-length:")
    assert at >= 0, head
    return end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one run."""

    seconds: float
    latencies_seconds: list[float]

    def percentile_ms(self, percent: float) -> float:
        """Return a latency that so many answers kept."""
        ordered = sorted(self.latencies_seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@dataclass(slots=True)
class _Line:
    sock: ssl.SSLSocket
    sent_at: float = 0.0
    received: bytearray = field(default_factory=bytearray)


def run(port: int, message: bytes, *, connections: int, requests: int) -> Outcome:
    """Send one message again and again over kept connections, each waiting for its answer.

    One thread for all: threads of this process would wait for each other and not for the server.
    """
    context, selector = tls_context(), selectors.DefaultSelector()
    lines = [_Line(connect(port, context)) for _ in range(connections)]
    left_to_send, latencies = requests, []
    began = time.perf_counter()
    for line in lines:
        selector.register(line.sock, selectors.EVENT_READ, line)
        line.sent_at = time.perf_counter()
        line.sock.sendall(message)
        line.sock.settimeout(0)
        left_to_send -= 1
    while len(latencies) < requests:
        ready = selector.select(DEADLINE_SECONDS)
        assert ready, "the server is silent"
        for key, _ in ready:
            line = key.data
            if not _is_whole(line):
                continue
            assert line.received.startswith(b"HTTP/1.1 200"), bytes(line.received[:200])
            now = time.perf_counter()
            latencies.append(now - line.sent_at)
            line.received.clear()
            if left_to_send > 0:
                left_to_send -= 1
                line.sock.settimeout(DEADLINE_SECONDS)
                line.sent_at = time.perf_counter()
                line.sock.sendall(message)
                line.sock.settimeout(0)
    seconds = time.perf_counter() - began
    for line in lines:
        line.sock.close()
    selector.close()
    return Outcome(seconds=seconds, latencies_seconds=latencies)


def _is_whole(line: _Line) -> bool:
    while True:
        try:
            piece = line.sock.recv(1 << 16)
        except ssl.SSLWantReadError:
            return False
        assert piece, "the server hung up"
        line.received += piece
        length = answer_length(bytes(line.received))
        if length is not None and len(line.received) >= length:
            return True
