# SPDX-License-Identifier: Apache-2.0
"""What the agent writes to the API server, and the fresh reads it needs: each one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from deviceplugin.reconciliation import Verdict
from gpuslice.contract import gpunode, names, pods
from gpuslice.contract.ledger import Ledger, PodRef
from gpuslice.contract.names import NodeName
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import NotFoundError
from gpuslice.runtime.kube.resources import GPU_NODES, NODES, PODS

Json = Mapping[str, Any]

WRITE_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.5
"""For each of the reads that kubelet waits for."""


class Records:
    """One node's objects."""

    def __init__(self, client: KubeClient, node: NodeName) -> None:
        """Write for a node."""
        self._client = client
        self._node = node

    # --- the ledger

    def create(self, spec: Json, node: Json) -> dict[str, Any]:
        """Create this node's `GpuNode`, owned by the Node: it goes when that goes."""
        thing = {
            "metadata": {"name": self._node, "ownerReferences": [owner_of(node)]},
            "spec": spec,
        }
        return self._client.create(GPU_NODES, thing, timeout_seconds=WRITE_SECONDS)

    def write_spec(self, gpu_node: Json, spec: Json, node: Json) -> dict[str, Any]:
        """Write the inventory into a `GpuNode` as it was read: compare-and-swap."""
        about = {**pods.meta_of(gpu_node), "ownerReferences": [owner_of(node)]}
        thing = {**gpu_node, "metadata": about, "spec": spec}
        return self._client.replace(GPU_NODES, thing, timeout_seconds=WRITE_SECONDS)

    def write_status(self, gpu_node: Json, ledger: Ledger) -> dict[str, Any]:
        """Write the claims into a `GpuNode` as it was read: compare-and-swap."""
        thing = gpunode.with_status(gpu_node, ledger)
        return self._client.replace(GPU_NODES, thing, status=True, timeout_seconds=WRITE_SECONDS)

    def read(self, timeout_seconds: float = WRITE_SECONDS) -> dict[str, Any] | None:
        """Return this node's `GpuNode` as it is now, None where there is none."""
        try:
            return self._client.get(GPU_NODES, self._node, timeout_seconds=timeout_seconds)
        except NotFoundError:
            return None

    # --- the Node

    def patch_node(self, patch: Json) -> dict[str, Any]:
        """Patch the Node's status, annotations and labels in one write, if it is still that one."""
        return self._client.patch(
            NODES, self._node, patch, status=True, timeout_seconds=WRITE_SECONDS
        )

    def read_node(self) -> dict[str, Any] | None:
        """Return this Node as it is now, None where there is none."""
        try:
            return self._client.get(NODES, self._node, timeout_seconds=WRITE_SECONDS)
        except NotFoundError:
            return None

    # --- pods

    def pods_here(self, timeout_seconds: float = LOOK_SECONDS) -> tuple[dict[str, Any], ...]:
        """Return the sharing pods bound to this node, as they are now."""
        return self._client.list(
            PODS,
            labels=names.SHARE_LABEL,
            fields=f"spec.nodeName={self._node}",
            timeout_seconds=timeout_seconds,
        )

    def annotate(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        """Annotate a pod, if it is still that one."""
        patch = {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}}
        self._client.patch(
            PODS, pod.name, patch, namespace=pod.namespace, timeout_seconds=WRITE_SECONDS
        )

    def whereabouts(self, pod: PodRef) -> Verdict | None:
        """Return where a pod is now, None where it is on this node."""
        try:
            found = self._client.get(
                PODS, pod.name, namespace=pod.namespace, timeout_seconds=WRITE_SECONDS
            )
        except NotFoundError:
            return Verdict.GONE
        if pods.ref(found).uid != pod.uid:
            return Verdict.GONE
        node = pods.node_name(found)
        if node is None:
            return Verdict.UNBOUND
        return None if node == self._node else Verdict.ELSEWHERE


def owner_of(node: Json) -> dict[str, Any]:
    """Return the reference that makes a Node the owner of its `GpuNode`."""
    about = pods.meta_of(node)
    return {"apiVersion": "v1", "kind": "Node", "name": about["name"], "uid": about["uid"]}


def is_owned(gpu_node: Json, node: Json) -> bool:
    """Whether a `GpuNode` belongs to this very Node, not to a former one of its name."""
    owners = pods.meta_of(gpu_node).get("ownerReferences") or ()
    return any(owner.get("uid") == pods.meta_of(node)["uid"] for owner in owners)
