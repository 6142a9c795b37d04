# SPDX-License-Identifier: Apache-2.0
"""What the client does when the server or the way to it fails."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
import trustme

from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.credentials import TokenFile, fixed
from gpuslice.runtime.kube.endpoint import Cluster
from gpuslice.runtime.kube.errors import (
    ConfigError,
    ForbiddenError,
    UnauthorizedError,
    UnavailableError,
)
from gpuslice.runtime.kube.resources import NODES, PODS
from gpuslice.runtime.kube.transport import Transport
from tests.wire.runtime.scripted import HANG_UP, SILENCE, Answer, Scripted

BUSY = Answer(429, {"message": "later"}, {"Retry-After": "1"})
POD = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}}


def client_of(server: Scripted, pauses: list[float] | None = None, **more: object) -> KubeClient:
    cluster = Cluster(server=server.url, **more)  # type: ignore[arg-type]  # a test's shorthand
    taken = pauses if pauses is not None else []
    transport = Transport(cluster, user_agent="test", sleep=taken.append, jitter=lambda: 0.0)
    return KubeClient(cluster, transport=transport)


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
def test_a_busy_server_is_asked_again_when_it_says(method: str) -> None:
    """It refused before it began, so any method is safe."""
    pauses: list[float] = []
    with Scripted(BUSY, Answer(200, {"ok": True})).running() as server:
        client = client_of(server, pauses)
        calls = {
            "GET": lambda: client.get(NODES, "n"),
            "POST": lambda: client.create(NODES, {"metadata": {"name": "n"}}),
            "PATCH": lambda: client.patch(NODES, "n", {}),
        }
        assert calls[method]() == {"ok": True}
    assert pauses == [1.0]
    assert [asked.method for asked in server.asked] == [method, method]


def test_a_busy_server_is_not_asked_beyond_the_deadline() -> None:
    """The caller has other things to do."""
    with Scripted(BUSY).running() as server:
        with pytest.raises(UnavailableError, match="later"):
            client_of(server).get(NODES, "n", timeout_seconds=0.5)
        assert len(server.asked) == 1


def test_a_broken_kept_connection_is_replaced_for_a_read() -> None:
    """The server closed it while it was idle: no fault of the request's."""
    with Scripted(Answer(), HANG_UP, Answer(200, {"ok": True})).running() as server:
        client = client_of(server)
        client.get(NODES, "n")
        assert client.get(NODES, "n") == {"ok": True}


def test_a_write_is_not_repeated_when_its_answer_is_lost() -> None:
    """It may have been carried out; the caller knows what that would mean."""
    with Scripted(HANG_UP).running() as server:
        with pytest.raises(UnavailableError):
            client_of(server).bind(POD, "node")
        assert len(server.asked) == 1


def test_a_silent_server_costs_no_more_than_the_deadline() -> None:
    """Allocate waits for some of these calls, and kubelet for Allocate."""
    with Scripted(SILENCE).running() as server:
        began = time.monotonic()
        with pytest.raises(UnavailableError) as caught:
            client_of(server).get(NODES, "n", timeout_seconds=0.2)
        assert time.monotonic() - began < 1.0
        assert caught.value.code == 0


def test_a_trickle_costs_no_more_than_the_deadline() -> None:
    """Each byte comes in time, but the answer never ends."""
    over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not over.wait(0.05):
            connection.sendall(b"1\r\n \r\n")

    with Scripted(trickle).running() as server:
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="no end"):
            client_of(server).get(NODES, "n", timeout_seconds=0.3)
        assert time.monotonic() - began < 1.5
        over.set()


def test_a_server_that_is_not_there_is_tried_a_few_times() -> None:
    """Nothing was heard, so nothing was done."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    pauses: list[float] = []
    cluster = Cluster(server=f"http://127.0.0.1:{port}")
    transport = Transport(cluster, user_agent="t", sleep=pauses.append, jitter=lambda: 0.5)
    with pytest.raises(UnavailableError):
        KubeClient(cluster, transport=transport).create(NODES, {"metadata": {"name": "n"}})
    assert pauses == [0.05, 0.1, 0.2]


def test_a_proxys_page_is_an_error_with_its_words() -> None:
    """No JSON, but the reader learns who answered."""
    with Scripted(Answer(502, b"<h1>Bad gateway</h1>")).running() as server:
        with pytest.raises(UnavailableError, match="Bad gateway") as caught:
            client_of(server).get(NODES, "n")
        assert caught.value.code == 502


def test_a_refusal_is_not_tried_again() -> None:
    """RBAC doesn't change between two tries."""
    with Scripted(Answer(403, {"message": "no"})).running() as server:
        with pytest.raises(ForbiddenError):
            client_of(server).get(PODS, "p", namespace="n")
        assert len(server.asked) == 1


def test_a_renewed_token_is_used_at_once_after_a_401(tmp_path: Path) -> None:
    """The old one has just run out."""
    path = tmp_path / "token"
    path.write_text("old")
    with Scripted(Answer(), Answer(401), Answer(200, {"ok": True})).running() as server:
        client = client_of(server, token=TokenFile(path))
        client.get(NODES, "n")
        path.write_text("new")
        assert client.get(NODES, "n") == {"ok": True}
        sent = [asked.headers["authorization"] for asked in server.asked]
    assert sent == ["Bearer old", "Bearer old", "Bearer new"]


def test_a_second_401_is_final() -> None:
    """The server doesn't know us."""
    with Scripted(Answer(401, {"message": "who?"})).running() as server:
        with pytest.raises(UnauthorizedError, match="who"):
            client_of(server, token=fixed("t")).get(NODES, "n")
        assert len(server.asked) == 2


def test_connections_are_kept() -> None:
    """A handshake costs more than a request."""
    with Scripted(Answer()).running() as server:
        client = client_of(server)
        for _ in range(5):
            client.get(NODES, "n")
        assert {asked.connection for asked in server.asked} == {1}
        client.close()


def test_many_threads_share_one_client() -> None:
    """Each gets its own answer."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(Answer(200, {"ok": True}).encoded())

    with Scripted(answer).running() as server:
        client = client_of(server)
        found: list[object] = []
        threads = [
            threading.Thread(target=lambda: found.append(client.get(NODES, "n"))) for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert found == [{"ok": True}] * 20


def test_the_user_agent_names_the_component() -> None:
    """The audit log shows which half it was."""
    with Scripted(Answer()).running() as server:
        KubeClient(Cluster(server=server.url), component="webhook").get(NODES, "n")
        assert server.asked[0].headers["user-agent"].startswith("gpuslice-webhook/")


def test_a_path_before_the_api_is_kept() -> None:
    """Rancher and others serve many clusters under one address."""
    with Scripted(Answer()).running() as server:
        cluster = Cluster(server=f"{server.url}/k8s/clusters/c-1")
        KubeClient(cluster).get(NODES, "n")
        assert server.asked[0].target == "/k8s/clusters/c-1/api/v1/nodes/n"


def tls_context(authority: trustme.CA, name: str = "localhost") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def test_a_server_of_another_authority_is_not_talked_to() -> None:
    """The token would be given away."""
    context = tls_context(trustme.CA())
    with Scripted(Answer(), context=context).running() as server:
        client = client_of(server, ca_pem=trustme.CA().cert_pem.bytes(), token=fixed("secret"))
        with pytest.raises(UnavailableError, match=r"(?i)certificate"):
            client.get(NODES, "n")
        assert server.asked == []


def test_an_insecure_server_is_talked_to_when_the_user_says_so() -> None:
    """As kubectl does with insecure-skip-tls-verify."""
    with Scripted(Answer(200, {"ok": True}), context=tls_context(trustme.CA())).running() as server:
        assert client_of(server, insecure=True).get(NODES, "n") == {"ok": True}


def test_a_certificate_may_be_for_another_name_that_is_given() -> None:
    """tls-server-name of the kubeconfig."""
    authority = trustme.CA()
    context = tls_context(authority, "kubernetes.example")
    with Scripted(Answer(200, {"ok": True}), context=context).running() as server:
        pem = authority.cert_pem.bytes()
        client = client_of(server, ca_pem=pem, server_name="kubernetes.example")
        assert client.get(NODES, "n") == {"ok": True}
        with pytest.raises(UnavailableError, match=r"(?i)hostname|certificate"):
            client_of(server, ca_pem=pem).get(NODES, "n")


def test_a_client_certificate_is_shown() -> None:
    """Inline ones need no file."""
    authority = trustme.CA()
    context = tls_context(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    mine = authority.issue_cert("me")
    with Scripted(Answer(200, {"ok": True}), context=context).running() as server:
        pem = authority.cert_pem.bytes()
        client = client_of(
            server,
            ca_pem=pem,
            certificate_pem=mine.cert_chain_pems[0].bytes(),
            key_pem=mine.private_key_pem.bytes(),
        )
        assert client.get(NODES, "n") == {"ok": True}


def test_a_rotated_authority_is_read_again(tmp_path: Path) -> None:
    """The file was replaced while the process ran: the next call trusts the new one."""
    old, new = trustme.CA(), trustme.CA()
    path = tmp_path / "ca.crt"
    old.cert_pem.write_to_path(str(path))
    answer = Answer(200, {"ok": True})
    with Scripted(answer, context=tls_context(new)).running() as server:
        client = client_of(server, ca_file=path)
        new.cert_pem.write_to_path(str(path))
        with pytest.raises(UnavailableError):
            client.get(NODES, "n")
        assert client.get(NODES, "n") == {"ok": True}


def test_a_file_that_holds_no_certificate_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    """Said at the start, with the server's name."""
    path = tmp_path / "ca.crt"
    path.write_text("none")
    with pytest.raises(ConfigError, match="https://x"):
        KubeClient(Cluster(server="https://x", ca_file=path))


def test_a_body_is_json() -> None:
    """Whatever the caller's mapping type is."""
    with Scripted(Answer()).running() as server:
        client_of(server).patch(NODES, "n", {"a": None})
        assert json.loads(server.asked[0].body) == {"a": None}
        assert server.asked[0].headers["content-type"] == "application/merge-patch+json"
