# SPDX-License-Identifier: Apache-2.0
"""What the agent watches: its pods, its Node, its `GpuNode`, and the shares in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuslice.contract import gpunode, names, pods
from gpuslice.contract.names import NodeName, PodUid
from gpuslice.contract.placement import Demand
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.resources import GPU_NODES, GPU_SHARES, NODES, PODS, Json
from gpuslice.runtime.kube.watch import WatchCache


class Caches:
    """Four watches of one node's agent, each selected by the API server."""

    def __init__(self, client: KubeClient, node: NodeName, on_change: Callable[[], None]) -> None:
        """Watch for a node, once started.

        Args:
            client: reads the API server.
            node: the agent's own.
            on_change: told of each change, in some thread.
        """
        self._node = node
        self._ended: set[PodUid] = set()
        own = f"metadata.name={node}"
        self.pods = WatchCache(
            client,
            PODS,
            fields=f"spec.nodeName={node}",
            labels=names.SHARE_LABEL,
            transform=self._note_end,
        )
        self.gpu_nodes = WatchCache(client, GPU_NODES, fields=own)
        self.nodes = WatchCache(client, NODES, fields=own)
        self.gpu_shares = WatchCache(client, GPU_SHARES)
        self._all = (self.pods, self.gpu_nodes, self.nodes, self.gpu_shares)
        for cache in self._all:
            cache.listen(lambda *_: on_change())

    def start(self) -> None:
        """Begin to watch."""
        for cache in self._all:
            cache.start()

    def stop(self) -> None:
        """End."""
        for cache in self._all:
            cache.stop()

    @property
    def are_ready(self) -> bool:
        """Whether each has been read once."""
        return all(cache.is_ready for cache in self._all)

    @property
    def problem(self) -> str:
        """Why the API server can't be read; empty while it can."""
        return next(filter(None, (cache.problem for cache in self._all)), "")

    @property
    def gpu_node(self) -> Json | None:
        """This node's ledger, as far as it is known."""
        return self.gpu_nodes.get(self._node)

    @property
    def node(self) -> Json | None:
        """This node."""
        return self.nodes.get(self._node)

    def pods_by_uid(self) -> dict[PodUid, Json]:
        """Return the sharing pods bound to this node."""
        return {pods.ref(pod).uid: pod for pod in self.pods.snapshot().values()}

    def demands(self) -> list[Demand]:
        """Return the shares in use in the cluster; what isn't ours to read is left out."""
        found = []
        for thing in self.gpu_shares.snapshot().values():
            try:
                found.append(gpunode.demand_of(thing))
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def ended(self) -> frozenset[PodUid]:
        """Return the pods that were seen to have ended, whether they are still there or not."""
        return frozenset(self._ended)

    def forget_ended(self, known: frozenset[PodUid]) -> None:
        """Forget the end of all pods but these."""
        self._ended &= known

    def _note_end(self, pod: Json) -> Json:
        """Remember a pod's end before it is in the cache: its deletion may follow at once."""
        if pods.has_ended(pod):
            self._ended.add(pods.ref(pod).uid)
        return trimmed(pod)


def trimmed(pod: Json) -> Json:
    """Return what reconciliation and the watch over use read of a pod."""
    about, spec = pod["metadata"], pods.spec_of(pod)
    kept = ("name", "namespace", "uid", "resourceVersion", "labels", "deletionTimestamp")
    ours = {
        key: value for key, value in pods.annotations_of(pod).items() if key.startswith(names.GROUP)
    }
    trimmed_spec: dict[str, Any] = {"nodeName": spec.get("nodeName")}
    for group in ("initContainers", "containers"):
        if spec.get(group):
            trimmed_spec[group] = [
                {"name": each.get("name"), "resources": each.get("resources")}
                for each in spec[group]
            ]
    return {
        "metadata": {key: about[key] for key in kept if key in about} | {"annotations": ours},
        "spec": trimmed_spec,
        "status": _trimmed_status(pod.get("status") or {}),
    }


def _trimmed_status(status: Json) -> Json:
    trimmed: dict[str, Any] = {"phase": status.get("phase")}
    for group in ("initContainerStatuses", "containerStatuses"):
        ids = [
            {"name": each.get("name"), "containerID": each["containerID"]}
            for each in status.get(group) or ()
            if each.get("containerID")
        ]
        if ids:
            trimmed[group] = ids
    return trimmed
