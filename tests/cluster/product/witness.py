# SPDX-License-Identifier: Apache-2.0
"""What is true on the real cluster, from sources that the product has no part in.

Tokens come from kubelets' checkpoints, environments from `kubectl exec`, GPUs from the files that
the driver reads. The embedded cluster's promises are then checked against the real one, unchanged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuslice.contract import names
from gpuslice.sim.nvml.machine import MIB
from gpuslice.sim.observation import HandOut, Observation, RealGpu, is_leaving, phase
from gpuslice.sim.promises import ledger, safety
from tests.cluster.harness.client import Json
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.errors import TimedOutError
from tests.cluster.harness.node import Node
from tests.cluster.product.serving import GPU_NODES, SLICES_PER_GPU

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
STEADY_SECONDS = 0.7
"""How long a state must hold before it counts: longer than kubelet takes to refuse a bound pod."""
OUTSIDE = frozenset({"kube-system", "gpuslice", "gpuslice-nodes"})

Faults = Callable[[Observation], Iterator[str]]


class Witness:
    """Looks at one cluster."""

    def __init__(self, cluster: Cluster, *, exec_environments: bool = False) -> None:
        """Watch a cluster.

        Args:
            cluster: with the product on it.
            exec_environments: also run `env` in each running container, once for each.
        """
        self._cluster = cluster
        self._exec_environments = exec_environments
        self._environments: dict[str, Mapping[str, str]] = {}

    def observe(self) -> Observation:
        """What is true now. Of kubelets' entries, those of pods that are there and not over."""
        nodes = [node for node in self._cluster.nodes.values() if node.is_on()]
        entries = [(node, entry) for node in nodes for entry in checkpoint(node)]
        pods = [
            pod
            for pod in self._cluster.api.items("/api/v1/pods")
            if pod["metadata"]["namespace"] not in OUTSIDE
        ]
        living = {
            pod["metadata"]["uid"]: pod for pod in pods if phase(pod) not in {"Succeeded", "Failed"}
        }
        return Observation(
            gpus=tuple(gpu for node in nodes for gpu in real_gpus(node)),
            pods=tuple(pods),
            hand_outs=tuple(
                self._hand_out(node, living[entry["PodUID"]], entry)
                for node, entry in entries
                if entry["PodUID"] in living and entry["ResourceName"] == names.SLICE_RESOURCE
            ),
            gpu_nodes=tuple(self._cluster.api.items(GPU_NODES)),
        )

    def _hand_out(self, node: Node, pod: Json, entry: Json) -> HandOut:
        metadata = pod["metadata"]
        return HandOut(
            node=node.name,
            namespace=metadata["namespace"],
            pod=metadata["name"],
            uid=metadata["uid"],
            container=entry["ContainerName"],
            tokens=tuple(sorted(t for ids in entry["DeviceIDs"].values() for t in ids)),
            environment=self._environment(pod, entry["ContainerName"]),
        )

    def _environment(self, pod: Json, container: str) -> Mapping[str, str]:
        if not self._exec_environments or phase(pod) != "Running" or is_leaving(pod):
            return {}
        key = f"{pod['metadata']['uid']}/{container}"
        if key not in self._environments:
            found = exec_environment(self._cluster, pod, container)
            if not found:  # it is just starting, or ending
                return {}
            self._environments[key] = found
        return self._environments[key]

    def settle(self, faults: Faults = ledger.faults, *, timeout_seconds: float = 30) -> Observation:
        """Wait until nothing is wrong, and stays so for a moment.

        Raises:
            AssertionError: a GPU is promised twice or kubelet rejected a pod, which no waiting
                mends; or time is up. It says all that is wrong.
        """
        deadline = time.monotonic() + timeout_seconds
        steady_since: float | None = None
        while True:
            seen = self.observe()
            final = [*safety.rejected(seen), *safety.overlapping(seen, SLICES_PER_GPU)]
            assert not final, "\n".join(final)
            wrong = [*faults(seen), *safety.misplaced(seen)]
            now = time.monotonic()
            if wrong:
                steady_since = None
            elif steady_since is None:
                steady_since = now
            elif now - steady_since >= STEADY_SECONDS:
                return seen
            assert now < deadline, "\n".join(wrong) or "things don't come to rest"
            time.sleep(0.05)

    def check(self, *, timeout_seconds: float = 30) -> Observation:
        """Hold invariants 1 to 3, and that the ledger comes to equal what kubelets handed out."""
        return self.settle(ledger.faults, timeout_seconds=timeout_seconds)


def checkpoint(node: Node) -> list[dict[str, Any]]:
    """The entries of a kubelet's device checkpoint; none before there is one."""
    done = node.run("cat", CHECKPOINT, check=False)
    if done.returncode:
        return []
    return json.loads(done.stdout)["Data"]["PodDeviceEntries"] or []


def real_gpus(node: Node) -> Iterator[RealGpu]:
    for gpu in node.gpus.root.read().gpus:
        memory_mib = (gpu.total_bytes - gpu.reserved_bytes) // MIB
        yield RealGpu(node=node.name, uuid=gpu.uuid, memory_mib=memory_mib)


def exec_environment(cluster: Cluster, pod: Json, container: str) -> Mapping[str, str]:
    """What `kubectl exec POD -- env` shows; nothing where the container doesn't run."""
    metadata = pod["metadata"]
    done = cluster.kubectl(
        *("exec", f"--namespace={metadata['namespace']}", metadata["name"]),
        *(f"--container={container}", "--", "env"),
        check=False,
    )
    if done.returncode:
        return {}
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def wait_no_claims(cluster: Cluster, namespace: str, *, timeout_seconds: float = 30) -> None:
    """Wait until no ledger has a claim of a namespace's pods."""
    deadline = time.monotonic() + timeout_seconds
    while left := list(claims_of(cluster, namespace)):
        if time.monotonic() > deadline:
            raise TimedOutError(f"claims of pods that are gone: {left}")
        time.sleep(0.05)


def claims_of(cluster: Cluster, namespace: str) -> Iterator[Json]:
    """The claims of a namespace's pods, as the ledgers have them."""
    for gpu_node in cluster.api.items(GPU_NODES):
        for claim in gpu_node.get("status", {}).get("claims", ()):
            if claim["pod"]["namespace"] == namespace:
                yield claim
