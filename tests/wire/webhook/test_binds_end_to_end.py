# SPDX-License-Identifier: Apache-2.0
"""Binds over the real API: waits, races, and the ways round."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gpuslice.runtime.kube.errors import ConflictError, KubeError
from gpuslice.runtime.kube.resources import GPU_SHARES, NODES, PODS
from tests.wire.webhook.conftest import Site
from tests.wire.webhook.rig import Cluster, Webhook, build_pod, eventually, post, review_of


def bind_all(cluster: Cluster, pods: list[dict[str, Any]], node: str) -> list[KubeError | None]:
    """Bind pods at once, each from a thread of its own; return what became of each."""
    results: list[KubeError | None] = [None] * len(pods)

    def bind(index: int) -> None:
        try:
            cluster.client.bind(pods[index], node)
        except KubeError as error:
            results[index] = error

    threads = [threading.Thread(target=bind, args=[index]) for index in range(len(pods))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def claimed_mib(cluster: Cluster, node: str) -> dict[str, int]:
    totals: dict[str, int] = {}
    for claim in cluster.claims(node):
        for part in claim["shape"]:
            totals[part["gpu"]] = totals.get(part["gpu"], 0) + part["memoryMiB"]
    return totals


def test_of_many_binds_at_once_those_that_fit_get_through(site: Site) -> None:
    site.cluster.add_node("node-many", gpus=2)
    pods = [site.cluster.create_pod(f"many-{each}", {"gpu-fraction": "0.3"}) for each in range(9)]
    results = bind_all(site.cluster, pods, "node-many")
    denied = [error for error in results if error is not None]
    assert len(denied) == 3
    assert all("no single GPU" in error.message for error in denied)
    assert set(claimed_mib(site.cluster, "node-many").values()) == {3 * 6910}


def test_two_replicas_never_promise_a_gpu_twice(cluster: Cluster) -> None:
    first, second = Webhook(cluster), Webhook(cluster)
    try:
        first.wait_ready()
        second.wait_ready()
        eventually(cluster.is_trusting)
        cluster.add_node("node-two", gpus=2)
        pods = [cluster.create_pod(f"two-{each}", {"gpu-fraction": "0.3"}) for each in range(9)]
        verdicts: list[bool] = []

        def ask(index: int) -> None:
            pod = pods[index]
            target = {"apiVersion": "v1", "kind": "Node", "name": "node-two"}
            about = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            body = review_of(
                {"metadata": about, "target": target}, kind={"kind": "Binding"}, name=about["name"]
            )
            connection = (first, second)[index % 2].connect()
            verdicts.append(b'"allowed":true' in post(connection, "/admit/bindings", body).read())
            connection.close()

        threads = [threading.Thread(target=ask, args=[index]) for index in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert verdicts.count(True) == 6
        assert set(claimed_mib(cluster, "node-two").values()) == {3 * 6910}
    finally:
        first.close()
        second.close()


def test_a_bind_waits_until_the_plugin_serves(site: Site) -> None:
    agent = site.cluster.add_node("node-away")
    agent.change(lambda status: status.update(serving=False))
    pod = site.cluster.create_pod("away", {"gpu-fraction": "0.5"})
    back = threading.Timer(0.2, agent.change, [lambda status: status.update(serving=True)])
    back.start()
    site.cluster.client.bind(pod, "node-away")
    back.join()
    assert len(site.cluster.claims("node-away")) == 1


def test_a_plugin_that_stays_away_means_a_denial_within_the_wait(site: Site) -> None:
    agent = site.cluster.add_node("node-gone")
    agent.change(lambda status: status.update(serving=False))
    pod = site.cluster.create_pod("gone", {"gpu-fraction": "0.5"})
    began = time.monotonic()
    with pytest.raises(ConflictError, match="not serving"):
        site.cluster.client.bind(pod, "node-gone")
    assert 0.4 < time.monotonic() - began < 2.5
    assert site.cluster.claims("node-gone") == []


def test_waiting_binds_never_delay_admission(site: Site) -> None:
    agent = site.cluster.add_node("node-slow", gpus=8)
    agent.silent.set()
    pods = [site.cluster.create_pod(f"slow-{each}", {"gpu-fraction": "0.5"}) for each in range(12)]
    connection = site.webhook.connect()
    body = review_of(build_pod("p", {"gpu-fraction": "0.5"}))
    thread = threading.Thread(target=bind_all, args=[site.cluster, pods, "node-slow"])
    thread.start()
    eventually(lambda: site.cluster.claims("node-slow"))
    served_meanwhile = 0
    for _ in range(20):
        assert post(connection, "/admit/pods", body).read()
        served_meanwhile += thread.is_alive()
    connection.close()
    assert served_meanwhile >= 10
    thread.join(20)
    # None was shown, so all were taken back.
    assert site.cluster.claims("node-slow") == []


def test_an_ordinary_pod_is_bound_anywhere_and_costs_no_claim(site: Site) -> None:
    client = site.cluster.client
    site.cluster.add_node("node-mixed")
    client.create(NODES, {"metadata": {"name": "plain"}})
    for node in ("node-mixed", "plain"):
        pod = client.create(PODS, build_pod(f"ordinary-{node}"))
        client.bind(pod, node)
        bound = client.get(PODS, f"ordinary-{node}", namespace="default")
        assert bound["metadata"].get("annotations", {}) == {}
    assert site.cluster.claims("node-mixed") == []


def test_a_sharing_pod_is_not_bound_by_hand_to_a_node_without_gpus(site: Site) -> None:
    client = site.cluster.client
    client.create(NODES, {"metadata": {"name": "bare"}})
    pod = site.cluster.create_pod("by-hand", {"gpu-fraction": "0.37"})
    # Its share is listed by the same watch that the arbiter knows the pod by.
    eventually(lambda: "0.37" in {it["metadata"]["name"] for it in client.list(GPU_SHARES)})
    with pytest.raises(ConflictError, match="node bare has no GPUs to share"):
        client.bind(pod, "bare")


def test_a_pod_bound_without_a_uid_is_looked_up_by_name(site: Site) -> None:
    site.cluster.add_node("node-name")
    pod = site.cluster.create_pod("nameless", {"gpu-fraction": "0.5"})
    about = {"name": "nameless"}
    target = {"kind": "Node", "name": "node-name"}
    body = review_of(
        {"metadata": about, "target": target}, kind={"kind": "Binding"}, name="nameless"
    )
    connection = site.webhook.connect()
    assert b'"allowed":true' in post(connection, "/admit/bindings", body).read()
    connection.close()
    (claim,) = site.cluster.claims("node-name")
    assert claim["pod"]["uid"] == pod["metadata"]["uid"]
