# SPDX-License-Identifier: Apache-2.0
"""What `gpuslice top` tells: facts of nodes, GPUs and pods, read from the ledgers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from gpuslice.cli.top.used import Used
from gpuslice.contract import gpunode
from gpuslice.contract.ledger import Gpu, Ledger

Facts = list[dict[str, Any]]
NOTHING_KNOWN: Final[Used] = {}


def of_nodes(ledgers: Sequence[Ledger], used: Used = NOTHING_KNOWN) -> Facts:
    """Return one fact for each node, in the order of their names."""
    return [
        _node(ledger) | _used(used, [gpu.uuid for gpu in ledger.gpus])
        for ledger in _sorted(ledgers)
    ]


def _used(used: Used, gpus: Collection[str], who: tuple[str, str, str] | None = None) -> Any:
    """Return what is used of some GPUs, by all or by one container; None where nothing is known."""
    known = [mib for key, mib in used.items() if key[3] in gpus and who in (None, key[:3])]
    return {"usedMiB": sum(known) if known else None}


def _sorted(ledgers: Sequence[Ledger]) -> list[Ledger]:
    return sorted(ledgers, key=lambda ledger: ledger.node)


def _node(ledger: Ledger) -> dict[str, Any]:
    summary = gpunode.summary(ledger)
    memory_mib = sum(gpu.memory_mib for gpu in ledger.gpus)
    slices = sum(gpu.slices for gpu in ledger.gpus)
    return {
        "node": str(ledger.node),
        "gpus": len(ledger.gpus),
        "pods": len(ledger.claims),
        "claimedMiB": memory_mib - sum(ledger.free_mib(gpu) for gpu in ledger.gpus),
        "memoryMiB": memory_mib,
        "claimedSlices": slices - sum(ledger.free_slices(gpu) for gpu in ledger.gpus),
        "slices": slices,
        "largestFree": summary["largestFree"],
        "health": summary["health"],
    }


def of_gpus(ledgers: Sequence[Ledger], used: Used = NOTHING_KNOWN) -> Facts:
    """Return one fact for each GPU, node by node."""
    return [
        _gpu(ledger, gpu) | _used(used, [gpu.uuid])
        for ledger in _sorted(ledgers)
        for gpu in ledger.gpus
    ]


def _gpu(ledger: Ledger, gpu: Gpu) -> dict[str, Any]:
    return {
        "node": str(ledger.node),
        "gpu": gpu.index,
        "uuid": str(gpu.uuid),
        "product": gpu.product,
        "pods": len(ledger.parts_on(gpu.uuid)),
        "claimedMiB": gpu.memory_mib - ledger.free_mib(gpu),
        "memoryMiB": gpu.memory_mib,
        "claimedSlices": gpu.slices - ledger.free_slices(gpu),
        "slices": gpu.slices,
        "state": _state(gpu),
    }


def _state(gpu: Gpu) -> str:
    if not gpu.healthy:
        return f"unhealthy: {gpu.reason}" if gpu.reason else "unhealthy"
    return "cordoned" if gpu.cordoned else "open"


def of_pods(ledgers: Sequence[Ledger], namespace: str, used: Used = NOTHING_KNOWN) -> Facts:
    """Return one fact for each claim, the largest first.

    Args:
        ledgers: of all nodes.
        namespace: whose pods; empty for all.
        used: what is known of their use.
    """
    found = [fact for ledger in ledgers for fact in _claims(ledger, namespace, used)]
    return sorted(found, key=lambda fact: (-fact["claimedMiB"], fact["namespace"], fact["pod"]))


def _claims(ledger: Ledger, namespace: str, used: Used) -> Iterator[dict[str, Any]]:
    for claim in ledger.claims:
        if namespace and claim.pod.namespace != namespace:
            continue
        gpus = [ledger.gpu(part.gpu) for part in claim.shape]
        who = (claim.pod.namespace, claim.pod.name, claim.container)
        yield _used(used, claim.gpus, who) | {
            "namespace": claim.pod.namespace,
            "pod": claim.pod.name,
            "container": claim.container,
            "share": str(claim.share),
            "node": str(ledger.node),
            "gpus": ",".join(str(gpu.index) for gpu in gpus),
            "uuids": ",".join(claim.gpus),
            "claimedMiB": sum(part.memory_mib for part in claim.shape),
            "memoryMiB": sum(gpu.memory_mib for gpu in gpus),
            "claimedSlices": claim.total_slices,
            "slices": sum(gpu.slices for gpu in gpus),
            "state": claim.state.value,
        }
