# SPDX-License-Identifier: Apache-2.0
"""GPUs, claims and pods for the tests of the device plugin's decisions."""

from __future__ import annotations

from typing import Any

from gpuslice.contract.ledger import Claim, ClaimState, Gpu, Ledger, Part, PodRef
from gpuslice.contract.names import SLICE_RESOURCE, GpuUuid, NodeName, PodUid
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import parse_share

L4_MIB = 23034
RESERVED, HELD, LEAVING = ClaimState.RESERVED, ClaimState.HELD, ClaimState.LEAVING


def gpu(index: int, *, memory_mib: int = L4_MIB, slices: int = 100, healthy: bool = True) -> Gpu:
    """Return a GPU called ``GPU-<index>``."""
    return Gpu(
        uuid=GpuUuid(f"GPU-{index}"),
        index=index,
        product="NVIDIA L4",
        memory_mib=memory_mib,
        slices=slices,
        healthy=healthy,
    )


def uid(name: str) -> PodUid:
    """Return the uid of the pod of that name."""
    return PodUid(f"uid-{name}")


def ref(name: str) -> PodRef:
    """Return the pod of that name."""
    return PodRef(namespace="ml", name=name, uid=uid(name))


def claim(
    name: str,
    share: str,
    slices: int,
    *gpus: Gpu,
    state: ClaimState = RESERVED,
    pod_gone: bool = False,
) -> Claim:
    """Return the claim of the pod of that name: `slices` on each of the GPUs."""
    wanted = parse_share(share)
    return Claim(
        pod=ref(name),
        container="main",
        share=wanted,
        fit=wanted,
        state=state,
        shape=tuple(
            Part(gpu=each.uuid, memory_mib=wanted.memory_mib_on(each.memory_mib), slices=slices)
            for each in gpus
        ),
        pod_gone=pod_gone,
    )


def ledger(gpus: tuple[Gpu, ...], *claims: Claim) -> Ledger:
    """Return the ledger of node-a, which is serving."""
    made = Ledger(node=NodeName("node-a"), gpus=gpus)
    for each in claims:
        made = made.with_claim(each)
    return made


def demand(share: str, slices: int) -> Demand:
    """Return a demand of `slices` on each of the share's devices."""
    return Demand(share=parse_share(share), slices=slices)


def tokens(gpu_of: Gpu, numbers: range) -> frozenset[str]:
    """Return tokens of a GPU by their numbers."""
    return frozenset(f"{gpu_of.uuid}::{number}" for number in numbers)


def all_tokens(*gpus: Gpu) -> frozenset[str]:
    """Return every token of these GPUs."""
    return frozenset().union(*(tokens(each, range(each.slices)) for each in gpus))


def pod(
    name: str,
    share: str,
    total_slices: int,
    *,
    phase: str = "Running",
    deleting: bool = False,
    annotations: dict[str, str] | None = None,
    node: str | None = "node-a",
) -> dict[str, Any]:
    """Return an admitted pod."""
    about: dict[str, Any] = {
        "namespace": "ml",
        "name": name,
        "uid": uid(name),
        "labels": {"gpuslice.dev/share": share},
        "annotations": annotations or {},
    }
    if deleting:
        about["deletionTimestamp"] = "2026-12-01T00:00:00Z"
    asked = {SLICE_RESOURCE: str(total_slices), f"gpuslice.dev/fit-{share}": "1"}
    return {
        "metadata": about,
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "resources": {"limits": asked, "requests": asked}}],
        },
        "status": {"phase": phase},
    }
