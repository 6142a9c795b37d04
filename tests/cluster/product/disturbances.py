# SPDX-License-Identifier: Apache-2.0
"""What breaks on a cluster, one thing at a time, and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from gpuslice.contract import names
from tests.cluster.harness.client import node_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.node import Node
from tests.cluster.harness.waiting import wait_until
from tests.cluster.product.serving import gpu_node_path

NODES_NAMESPACE = "gpuslice-nodes"
PLUGIN_PODS = f"/api/v1/namespaces/{NODES_NAMESPACE}/pods"
OUTAGE_SECONDS = 30

Disturb = Callable[[Cluster, Node], list[float]]
"""Breaks something of a node, and has it come back.

Returns:
    When kubelet or the plugin died without having told the ledger; `time.monotonic`.
"""


def plugin_pid(node: Node) -> str:
    """The device plugin's process, as its node numbers it; empty while there is none."""
    # The command line of the container's own process, not of what looks for it.
    found = node.run("pgrep", "--full", "--oldest", "gpuslice device-plugin", check=False)
    return found.stdout.strip()


def kill_plugin(node: Node) -> None:
    """SIGKILL the device plugin's process; kubelet starts its container again."""
    pid = plugin_pid(node)
    assert pid, f"no device plugin runs on {node.name}"
    node.run("kill", "-KILL", pid)
    wait_until("it is gone", lambda: plugin_pid(node) != pid, pause_seconds=0.01)


def plugin_pod(cluster: Cluster, node: Node) -> str:
    """The name of the device plugin's pod on a node."""
    (found,) = (
        pod["metadata"]["name"]
        for pod in cluster.api.items(PLUGIN_PODS)
        if pod["spec"].get("nodeName") == node.name and "deletionTimestamp" not in pod["metadata"]
    )
    return str(found)


def _kubelet_ends(cluster: Cluster, node: Node) -> list[float]:
    node.kubelet.stop()
    ended = time.monotonic()
    node.start_kubelet()
    return [ended]


def _kubelet_is_killed(cluster: Cluster, node: Node) -> list[float]:
    node.kubelet.kill()
    died = time.monotonic()
    node.start_kubelet()
    return [died]


def _containerd_ends(cluster: Cluster, node: Node) -> list[float]:
    node.restart_containerd()
    return []


def _containerd_is_killed(cluster: Cluster, node: Node) -> list[float]:
    node.restart_containerd(hard=True)
    return []


def _plugin_pod_is_deleted(cluster: Cluster, node: Node) -> list[float]:
    """SIGTERM, as in a rolling update: the DaemonSet makes another."""
    name = plugin_pod(cluster, node)
    cluster.api.delete(f"{PLUGIN_PODS}/{name}")
    cluster.api.wait_gone(f"{PLUGIN_PODS}/{name}")
    return []


def _plugin_is_killed(cluster: Cluster, node: Node) -> list[float]:
    kill_plugin(node)
    return [time.monotonic()]


def _both_are_killed(cluster: Cluster, node: Node) -> list[float]:
    kill_plugin(node)
    first = time.monotonic()
    node.kubelet.kill()
    second = time.monotonic()
    node.start_kubelet()
    return [first, second]


def _api_server_is_away(cluster: Cluster, node: Node) -> list[float]:
    cluster.control_plane.apiserver.kill()
    _outlast(OUTAGE_SECONDS)
    cluster.start_apiserver()
    return []


def _etcd_is_away(cluster: Cluster, node: Node) -> list[float]:
    cluster.control_plane.etcd.kill()
    _outlast(OUTAGE_SECONDS / 2)
    cluster.control_plane.start_etcd()
    cluster.api.wait("the API server answers", node_path(node.name), bool)
    return []


def _outlast(seconds: float) -> None:
    """The outage's length is what is tested, so here time itself is waited for."""
    ends = time.monotonic() + seconds
    wait_until("the outage has lasted", lambda: time.monotonic() >= ends, timeout_seconds=120)


DISTURBANCES: Final[Mapping[str, Disturb]] = {
    "kubelet ends": _kubelet_ends,
    "kubelet is killed": _kubelet_is_killed,
    "containerd ends": _containerd_ends,
    "containerd is killed": _containerd_is_killed,
    "the plugin ends": _plugin_pod_is_deleted,
    "the plugin is killed": _plugin_is_killed,
    "kubelet and the plugin are killed": _both_are_killed,
    "the API server is away": _api_server_is_away,
    "etcd is away": _etcd_is_away,
}
AWAY: Final = frozenset({"the API server is away", "etcd is away"})
"""Those during which nothing can be created."""
LOSES_ENDS: Final = "containerd is killed"
"""It may then not know how a container ended, and says that it failed."""


def wait_back(cluster: Cluster, node: Node, *, timeout_seconds: float = 60) -> None:
    """Wait until a node's slices can be had again, however many are in use."""
    wanted = 100 * node.gpus.count

    def offers_all(found: dict[str, object]) -> bool:
        status = found["status"]
        assert isinstance(status, dict)
        return str(status["allocatable"].get(names.SLICE_RESOURCE)) == str(wanted)

    cluster.api.wait(
        f"the ledger of {node.name} says that it serves",
        gpu_node_path(node.name),
        lambda found: found["status"]["serving"],
        timeout_seconds=timeout_seconds,
    )
    cluster.api.wait(
        f"{node.name} offers its slices",
        node_path(node.name),
        offers_all,
        timeout_seconds=timeout_seconds,
    )
