# SPDX-License-Identifier: Apache-2.0
"""Pods as admission leaves them, on GPUs of few slices: short histories fill them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuslice.contract import names, pods
from gpuslice.contract.ledger import Gpu
from gpuslice.contract.names import GpuUuid, NodeName, PodUid
from gpuslice.contract.placement import Demand, Policy
from gpuslice.contract.shares import parse_share
from gpuslice.contract.slices import SliceRule
from tests.property.placement.apiserver import merged

Json = Mapping[str, Any]

RESOURCE: Final = names.SLICE_RESOURCE
NAMESPACE: Final = "ml"
SLICES: Final = 10
MEMORIES_MIB: Final = (1000, 1510)
"""Two kinds of GPU, one of a memory that no share divides evenly."""
_RULE: Final = SliceRule(slices_per_gpu=SLICES)


def demand(share: str) -> Demand:
    """Return what a pod of this share asks for, as admission writes it."""
    parsed = parse_share(share)
    return Demand(share=parsed, slices=_RULE.slices_of_share(parsed, MEMORIES_MIB))


PALETTES: Final = tuple(
    tuple(demand(share) for share in text.split())
    for text in (
        "1 0.6 0.4",
        "0.5 0.5 0.4",
        "0.6 0.4 300mi",
        "0.4 2x0.2 0.2",  # 4, 4 and 2 tokens
        "0.5 1 2x0.5",  # 5, 10 and 10 tokens
        "0.3 500mi 0.7",  # 3, 3 and 7 tokens
        "0.6 2x0.6 0.4",
        "0.7 0.3 800mi",
    )
)
"""Kinds of pods that meet in one history: few, so that equal ones are frequent, and some that ask
for the same number of tokens with another share."""


def build_gpu(node: str, index: int, memory_mib: int) -> Gpu:
    return Gpu(
        uuid=GpuUuid(f"GPU-{node}{index}"),
        index=index,
        product="L4",
        memory_mib=memory_mib,
        slices=SLICES,
    )


def build_pod(name: str, uid: str, wanted: Demand, policy: Policy) -> Json:
    """Return a pod as it is stored after admission."""
    limits = {RESOURCE: str(wanted.total_slices), wanted.share.fit_resource: "1"}
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid,
            "labels": {names.SHARE_LABEL: str(wanted.share)},
            "annotations": {names.PLACEMENT: policy.value},
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }


def build_node(name: str) -> Json:
    return {
        "metadata": {"name": name, "uid": f"node-{name}", "annotations": {}, "labels": {}},
        "status": {"capacity": {}, "allocatable": {}},
    }


def bound(pod: Json, node: NodeName, annotations: Mapping[str, str]) -> Json:
    """Return a pod after its Binding, whose annotations come in the same write."""
    return merged(pod, {"metadata": {"annotations": annotations}, "spec": {"nodeName": node}})


def phased(pod: Json, phase: str) -> Json:
    return merged(pod, {"status": {"phase": phase}})


def deleting(pod: Json) -> Json:
    return merged(pod, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})


def uid_of(pod: Json) -> PodUid:
    return PodUid(pod["metadata"]["uid"])


def limits_of(pod: Json) -> Mapping[str, str]:
    """Return what its one container asks for."""
    found: Mapping[str, str] = pod["spec"]["containers"][0]["resources"]["limits"]
    return found


def is_deleting(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def waits(pod: Json) -> bool:
    """Whether a scheduler has it to place."""
    return pods.node_name(pod) is None and not pods.is_leaving(pod)
