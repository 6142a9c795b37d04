# SPDX-License-Identifier: Apache-2.0
"""Probes and scrapes over a real socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from gpuslice.runtime.metrics import Metrics
from gpuslice.runtime.status_server import State, StatusServer


class Readiness:
    def __init__(self) -> None:
        self.state: State = (False, "waiting for the API server")

    def __call__(self) -> State:
        return self.state


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
def served(readiness: Readiness) -> Iterator[StatusServer]:
    metrics = Metrics("test", process=False)
    metrics.counter("things_total", "Things").inc(3)
    server = StatusServer(metrics.registry, ready=readiness).start()
    yield server
    server.stop()


def ask(server: StatusServer, path: str, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection("localhost", server.port, timeout=5)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_metrics_are_in_prometheus_text(served: StatusServer) -> None:
    """With our prefix, and which build it is."""
    code, body = ask(served, "/metrics")
    assert code == 200
    assert "gpuslice_things_total 3.0" in body
    assert 'gpuslice_build_info{component="test",version="' in body


def test_readiness_is_asked_each_time_and_says_why_not(
    served: StatusServer, readiness: Readiness
) -> None:
    """Kubectl describe shows the text of a failed probe."""
    assert ask(served, "/readyz") == (503, "waiting for the API server\n")
    readiness.state = (True, "ok")
    assert ask(served, "/readyz") == (200, "ok\n")


def test_health_is_another_question(served: StatusServer) -> None:
    """What waits for something outside must not be restarted for it."""
    assert ask(served, "/healthz?verbose") == (200, "ok\n")


def test_other_paths_are_told_the_right_ones(served: StatusServer) -> None:
    """404 with help."""
    code, body = ask(served, "/")
    assert code == 404
    assert "/metrics" in body


def test_a_head_has_no_body(served: StatusServer) -> None:
    """Some load balancers probe so."""
    assert ask(served, "/healthz", "HEAD") == (200, "")


def test_a_silent_client_holds_up_nobody(served: StatusServer) -> None:
    """Each connection has its own thread."""
    with socket.create_connection(("localhost", served.port)):
        assert ask(served, "/healthz")[0] == 200


def test_it_answers_on_ipv4_too(served: StatusServer) -> None:
    """Kubelet probes the pod's address of either family."""
    connection = HTTPConnection("127.0.0.1", served.port, timeout=5)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()


def test_stopping_closes_the_port(readiness: Readiness) -> None:
    """In less than a second."""
    server = StatusServer(Metrics("t", process=False).registry, ready=readiness).start()
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 1.0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)
