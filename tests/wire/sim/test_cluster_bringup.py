# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster comes up with the product's real processes, and goes without a trace."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.runtime.kube.errors import InvalidError, NotFoundError
from gpuslice.runtime.kube.resources import GPU_NODES, NODES
from gpuslice.sim.cluster import Cluster, ClusterError, Plan
from gpuslice.sim.promises import ledger, safety

DEPLOY = Path(__file__).parents[3] / "deploy"
pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("cluster-bringup")]


@pytest.fixture(scope="module")
def library_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


@pytest.fixture(scope="module")
def cluster(library_cache: Path) -> Iterator[Cluster]:
    with Cluster(Plan(deploy=DEPLOY, library_cache=library_cache, webhooks=2)) as running:
        running.add_node("node-a")
        yield running


def pod(name: str, fraction: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"gpu-fraction": fraction}},
        "spec": {"containers": [{"name": "main", "image": "ubuntu"}]},
    }


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_pod_runs_and_the_ledger_is_what_kubelet_handed_out(cluster: Cluster) -> None:
    cluster.create_pod(pod("half", "0.5"))
    cluster.webhooks.running[0].child.wait_until(
        lambda: bool(cluster.observe().running()) and not [*ledger.faults(cluster.observe())],
        seconds=20,
    )
    seen = cluster.observe()
    assert list(safety.faults(seen, 100)) == []
    assert [len(each.tokens) for each in seen.hand_outs] == [50]
    cluster.check()


def test_two_replicas_of_the_webhook_are_asked_in_turn(cluster: Cluster) -> None:
    ports = {cluster.webhooks.resolve("gpuslice", "gpuslice-webhook", 443)[1] for _ in range(2)}
    assert ports == {replica.port for replica in cluster.webhooks.running}


def test_a_wrong_pod_is_refused_by_the_real_webhook(cluster: Cluster) -> None:
    with pytest.raises(InvalidError, match=r"is more than one GPU"):
        cluster.create_pod(pod("wrong", "2"))


def test_a_node_that_leaves_takes_its_objects_and_its_process_along(cluster: Cluster) -> None:
    host = cluster.add_node("node-x", gpus=2)
    assert len(cluster.client.get(GPU_NODES, "node-x")["spec"]["gpus"]) == 2
    cluster.remove_node("node-x")
    assert not alive(host.plugin.pid)
    for resource in (NODES, GPU_NODES):
        with pytest.raises(NotFoundError):
            cluster.client.get(resource, "node-x")


def test_a_part_that_dies_is_named_with_the_end_of_its_log(library_cache: Path) -> None:
    with Cluster(Plan(deploy=DEPLOY, library_cache=library_cache)) as running:
        child = running.webhooks.running[0].child
        child.kill()
        with pytest.raises(ClusterError, match=r"webhook-0 ended with -9; the end of .*/logs/"):
            running.check()


def test_nothing_is_left_after_the_end(library_cache: Path) -> None:
    with Cluster(Plan(deploy=DEPLOY, library_cache=library_cache)) as running:
        host = running.add_node("node-a")
        pids = [host.plugin.pid, *(each.child.pid for each in running.webhooks.running)]
        folder = running.folder
        assert all(map(alive, pids))
    assert not any(map(alive, pids))
    assert not folder.exists()


def test_without_the_projects_manifests_it_is_said_what_is_missing(
    library_cache: Path, tmp_path: Path
) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    (tmp_path / "deploy" / "webhook-configuration.yaml").unlink()
    broken = Cluster(Plan(deploy=tmp_path / "deploy", library_cache=library_cache))
    with pytest.raises(ClusterError, match=r"webhook-configuration\.yaml is missing"), broken:
        pass
    shutil.rmtree(broken.folder)
