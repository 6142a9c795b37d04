# SPDX-License-Identifier: Apache-2.0
"""The process: how it starts, drains, dies, and changes its certificate."""

from __future__ import annotations

import base64
import http.client
import os
import signal
import socket
import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path

from tests.wire.webhook.rig import Cluster, Webhook, build_pod, eventually, post, review_of
from webhook import certs, trust

BODY = review_of(build_pod("p", {"gpu-fraction": "0.5"}))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def served_certificate(port: int) -> bytes:
    pem = ssl.get_server_certificate(("127.0.0.1", port))
    return pem.encode()


def test_draining_loses_no_request_and_ends_with_zero(cluster: Cluster) -> None:
    """Clients on kept connections are told to leave; one that connects anew is still served."""
    webhook = Webhook(cluster, "webhook.drainSeconds=2").wait_ready()
    failures: list[str] = []
    served_anew: list[bool] = []
    busy = threading.Barrier(5)

    def load() -> None:
        connection = webhook.connect()
        post(connection, "/admit/pods", BODY).read()
        busy.wait(10)
        try:
            closing = False
            while not closing:
                answer = post(connection, "/admit/pods", BODY)
                answer.read()
                closing = answer.getheader("Connection") == "close"
            connection.close()
            served_anew.append(post(connection, "/admit/pods", BODY).status == 200)
        except (OSError, http.client.HTTPException) as error:
            failures.append(repr(error))
        finally:
            connection.close()

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    busy.wait(10)
    webhook.process.send_signal(signal.SIGTERM)
    eventually(lambda: webhook.status("/readyz") == (503, "draining\n"))
    for thread in threads:
        thread.join(15)
    assert webhook.process.wait(15) == 0
    assert failures == []
    assert served_anew == [True] * 4


def test_a_worker_never_outlives_its_launcher(cluster: Cluster) -> None:
    webhook = Webhook(cluster).wait_ready()
    worker = webhook.worker_pid()
    os.kill(webhook.process.pid, signal.SIGKILL)
    webhook.process.wait(5)
    eventually(lambda: not is_alive(worker), seconds=5)


def test_a_dead_worker_ends_the_launcher_so_that_kubelet_starts_both_anew(
    cluster: Cluster,
) -> None:
    webhook = Webhook(cluster).wait_ready()
    os.kill(webhook.worker_pid(), signal.SIGKILL)
    assert webhook.process.wait(15) == 1


def test_silent_and_half_sent_clients_stall_nobody(cluster: Cluster) -> None:
    webhook = Webhook(cluster).wait_ready()
    silent = [socket.create_connection(("127.0.0.1", webhook.port)) for _ in range(200)]
    halves = []
    for _ in range(40):
        connection = webhook.connect()
        connection.connect()
        connection.sock.sendall(
            b"POST /admit/pods HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
        )
        halves.append(connection)
    connection = webhook.connect()
    assert post(connection, "/admit/pods", BODY).status == 200
    connection.close()
    for each in silent:
        each.close()
    for half in halves:
        half.close()
    webhook.close()


def test_a_new_certificate_is_served_without_losing_a_request(
    cluster: Cluster, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    authority = certs.new_authority(now)
    names = certs.service_names("gpuslice-webhook", "gpuslice")
    first, second = (certs.new_leaf(authority, names, now) for _ in range(2))
    trust.write_files(tmp_path, first)
    webhook = Webhook(
        cluster, "webhook.certificateMode=files", f"webhook.certificateDir={tmp_path}"
    ).wait_ready()
    assert served_certificate(webhook.port).strip() == first.certificate_pem.strip()
    failures: list[str] = []
    stopping = threading.Event()

    def load() -> None:
        while not stopping.is_set():
            connection = webhook.connect()
            try:
                for _ in range(20):
                    post(connection, "/admit/pods", BODY).read()
            except (OSError, http.client.HTTPException) as error:
                failures.append(repr(error))
            finally:
                connection.close()

    thread = threading.Thread(target=load)
    thread.start()
    trust.write_files(tmp_path, second)
    webhook.process.send_signal(signal.SIGHUP)
    eventually(lambda: served_certificate(webhook.port).strip() == second.certificate_pem.strip())
    eventually(
        lambda: "worker_started" in webhook.log_path.read_text().partition("worker_started")[2]
    )
    eventually(lambda: webhook.status("/readyz")[0] == 200)
    stopping.set()
    thread.join(10)
    assert failures == []
    webhook.close()


def test_replicas_that_start_at_once_agree_on_one_authority(cluster: Cluster) -> None:
    replicas = [Webhook(cluster), Webhook(cluster)]
    try:
        for replica in replicas:
            replica.wait_ready()
        eventually(cluster.is_trusting)
        bundle = eventually(
            lambda: cluster.client.list(trust.MUTATING_WEBHOOKS)[0]["webhooks"][0]["clientConfig"]
        )["caBundle"]
        authority = base64.b64decode(bundle).decode()
        context = ssl.create_default_context(cadata=authority)
        for replica in replicas:
            with (
                socket.create_connection(("127.0.0.1", replica.port)) as raw,
                context.wrap_socket(raw, server_hostname="gpuslice-webhook.gpuslice.svc") as tls,
            ):
                assert tls.version() == "TLSv1.3"
    finally:
        for replica in replicas:
            replica.close()


def test_a_webhook_that_cant_reach_the_cluster_says_so_and_ends(
    cluster: Cluster, tmp_path: Path
) -> None:
    bad = tmp_path / "kubeconfig"
    bad.write_text(
        cluster.kubeconfig.read_text().replace(cluster.server.url, "https://127.0.0.1:9")
    )
    webhook = Webhook(cluster, kubeconfig=bad)
    assert webhook.process.wait(30) == 1
    assert "gpuslice webhook: " in webhook.log_path.read_text()


def test_the_certificates_expiry_is_a_metric(cluster: Cluster) -> None:
    webhook = Webhook(cluster).wait_ready()
    _, text = webhook.status("/metrics")
    (line,) = (
        line
        for line in text.splitlines()
        if line.startswith("gpuslice_certificate_expiry_timestamp_seconds ")
    )
    assert float(line.split()[1]) > datetime.now(UTC).timestamp() + 80 * 86400
    webhook.close()
