# SPDX-License-Identifier: Apache-2.0
"""The relay between the machine's loopback and the cluster's API server, both ends on loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.harness import relay


@contextmanager
def relaying(port: int) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address: tuple[str, int] = listener.getsockname()
        process = subprocess.Popen(
            (sys.executable, relay.__file__, str(listener.fileno()), "127.0.0.1", str(port)),
            pass_fds=(listener.fileno(),),
        )
    try:
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def shouter() -> Iterator[int]:
    """A server that reads to the end, and then answers in capitals."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _peer = listener.accept()
            with connection, connection.makefile("rwb") as stream:
                stream.write(stream.read().upper())

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_both_directions_are_copied_and_ended_each_for_itself(shouter: int) -> None:
    text = b"quiet please " * 50_000
    with relaying(shouter) as address, socket.create_connection(address) as client:
        client.sendall(text)
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as answer:
            assert answer.read() == text.upper()


def test_a_server_that_is_away_ends_the_connection_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    with relaying(closed) as address, socket.create_connection(address) as client:
        assert client.recv(1) == b""
