# SPDX-License-Identifier: Apache-2.0
"""Promise 5: the ledger equals what the kubelets really handed out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpuslice.sim.observation import Observation, wish

TITLE: Final = "the ledger is what the kubelets handed out, claim for claim"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Entry:
    """One container's part of one GPU."""

    node: str
    gpu: str
    pod: str
    container: str
    memory_mib: int
    slices: int

    def __str__(self) -> str:
        return (
            f"{self.pod}/{self.container} has {self.memory_mib} MiB and {self.slices} slices of "
            f"{self.gpu} on {self.node}"
        )


def written(seen: Observation) -> tuple[Entry, ...]:
    """Return what the `GpuNode` objects say."""
    return tuple(
        sorted(
            Entry(
                node=gpu_node["metadata"]["name"],
                gpu=part["gpu"],
                pod=claim["pod"]["name"],
                container=claim["container"],
                memory_mib=part["memoryMiB"],
                slices=part["slices"],
            )
            for gpu_node in seen.gpu_nodes
            for claim in (gpu_node.get("status") or {}).get("claims") or ()
            for part in claim["shape"]
        )
    )


def real(seen: Observation) -> tuple[Entry, ...]:
    """Return what the kubelets handed out, with the MiB that each pod's author asked for."""
    entries = []
    for hand_out in seen.hand_outs:
        asked = wish(pod) if (pod := seen.pod(hand_out.pod)) else None
        for gpu, tokens in hand_out.tokens_by_gpu().items():
            memory_mib = asked.mib_on(seen.memory_mib(gpu)) if asked else -1
            entries.append(
                Entry(
                    node=hand_out.node,
                    gpu=gpu,
                    pod=hand_out.pod,
                    container=hand_out.container,
                    memory_mib=memory_mib,
                    slices=tokens,
                )
            )
    return tuple(sorted(entries))


def faults(seen: Observation) -> Iterator[str]:
    """Yield each entry that only one side has."""
    in_ledger, handed_out = set(written(seen)), set(real(seen))
    for entry in sorted(in_ledger - handed_out):
        yield f"only the ledger says: {entry}"
    for entry in sorted(handed_out - in_ledger):
        yield f"only the kubelet says: {entry}"
