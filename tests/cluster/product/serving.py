# SPDX-License-Identifier: Apache-2.0
"""When the product serves: on each node, and at the API server's admission."""

from __future__ import annotations

from functools import partial

from gpuslice.contract import names
from tests.cluster.harness.client import ApiError, Json, node_path, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.waiting import wait_until
from tests.cluster.product.sharing import sharing

GPU_NODES = f"/apis/{names.API_VERSION}/gpunodes"
GPU_SHARES = f"/apis/{names.API_VERSION}/gpushares"
SLICES_PER_GPU = 100
"""Without a setting."""


def gpu_node_path(node: str) -> str:
    return f"{GPU_NODES}/{node}"


def wait_serving(cluster: Cluster, *nodes: str, timeout_seconds: float = 60) -> None:
    """Wait until these nodes' slices can be had, by default all nodes', and pods are admitted."""
    for node in nodes or [each.name for each in cluster.nodes.values() if each.gpus.count]:
        cluster.api.wait(
            f"the agent of {node} says that it serves",
            gpu_node_path(node),
            lambda found: found.get("status", {}).get("serving"),
            timeout_seconds=timeout_seconds,
        )
        wanted = cluster.nodes[node].gpus.count * SLICES_PER_GPU
        cluster.api.wait(
            f"{node} offers {wanted} slices, and fits",
            node_path(node),
            partial(offers, slices=wanted),
            timeout_seconds=timeout_seconds,
        )
    wait_until(
        "a sharing pod is admitted",
        lambda: _is_admitted(cluster),
        timeout_seconds=timeout_seconds,
    )


def offers(node: Json, slices: int) -> bool:
    """Whether a Node has that many slices to give, and the fit of a half."""
    allocatable = node["status"].get("allocatable", {})
    return (
        int(allocatable.get(names.SLICE_RESOURCE, 0)) == slices
        and f"{names.FIT_PREFIX}0.5" in allocatable
    )


def _is_admitted(cluster: Cluster) -> bool:
    """By dry run; the API server calls the webhook for real."""
    try:
        answer = cluster.api.create(f"{pod_path()}?dryRun=All", sharing("probe", fraction="0.5"))
    except ApiError:
        return False
    return names.SHARE_LABEL in answer["metadata"].get("labels", {})
