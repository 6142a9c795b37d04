# SPDX-License-Identifier: Apache-2.0
"""Parts of the cluster end and come back, as they do on real machines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.harness.client import Api, Json, condition, node_path, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.workloads import container, create_running, delete_now, pod


@pytest.fixture
def running(cluster: Cluster, api: Api) -> Iterator[Json]:
    """A pod on node-a."""
    made = create_running(api, pod("steady", node="node-a"))
    yield made
    delete_now(api, made)


def _is_same(cluster: Cluster, before: Json) -> None:
    """The pod's container is the very one it was, and does something when asked."""
    now = cluster.api.get(pod_path("steady"))
    assert container(before)["containerID"] == container(now)["containerID"]
    assert container(now)["restartCount"] == 0
    assert cluster.kubectl("exec", "steady", "--", "echo", "alive").stdout == "alive\n"


@pytest.mark.parametrize("hard", [False, True], ids=["sigterm", "sigkill"])
def test_a_pod_survives_a_restart_of_kubelet(
    cluster: Cluster, running: Json, *, hard: bool
) -> None:
    cluster.nodes["node-a"].restart_kubelet(hard=hard)
    other = create_running(cluster.api, pod("after", node="node-a"))
    _is_same(cluster, running)
    delete_now(cluster.api, other)


@pytest.mark.parametrize("hard", [False, True], ids=["sigterm", "sigkill"])
def test_a_pod_survives_a_restart_of_containerd(
    cluster: Cluster, running: Json, *, hard: bool
) -> None:
    cluster.nodes["node-a"].restart_containerd(hard=hard)
    other = create_running(cluster.api, pod("after", node="node-a"))
    _is_same(cluster, running)
    delete_now(cluster.api, other)


def test_a_pod_survives_the_api_server(cluster: Cluster, running: Json) -> None:
    plane = cluster.control_plane
    plane.apiserver.kill()
    assert not cluster.api.is_ready()
    cluster.start_apiserver()
    _is_same(cluster, running)


def test_a_pod_survives_etcd(cluster: Cluster, running: Json) -> None:
    plane = cluster.control_plane
    plane.etcd.kill()
    plane.start_etcd()
    created = cluster.api.wait("the API server answers", node_path("node-a"), bool)
    assert condition(created, "Ready")
    other = create_running(cluster.api, pod("after", node="node-a"))
    _is_same(cluster, running)
    delete_now(cluster.api, other)


def test_a_pod_comes_back_after_a_reboot(cluster: Cluster, running: Json) -> None:
    node = cluster.nodes["node-a"]
    before = cluster.api.get(node_path("node-a"))["status"]["nodeInfo"]["bootID"]
    node.run("touch", "/run/lost", "/var/lib/kept")
    node.reboot()
    cluster.api.wait(
        "kubelet tells of another boot",
        node_path("node-a"),
        lambda found: found["status"]["nodeInfo"]["bootID"] != before,
    )
    cluster.api.wait(
        "the pod runs again",
        pod_path("steady"),
        lambda found: condition(found, "Ready") and container(found)["restartCount"] == 1,
    )
    assert node.run("test", "-e", "/run/lost", check=False).returncode != 0
    node.run("test", "-e", "/var/lib/kept")


def test_a_switched_off_node_is_found_out_and_comes_back(cluster: Cluster, running: Json) -> None:
    node = cluster.nodes["node-a"]
    node.stop()
    cluster.api.wait(
        "node-a is not Ready",
        node_path("node-a"),
        lambda found: not condition(found, "Ready"),
        timeout_seconds=120,
    )
    node.start()
    cluster.wait_ready("node-a")
    cluster.api.wait(
        "the pod runs again", pod_path("steady"), lambda found: condition(found, "Ready")
    )
