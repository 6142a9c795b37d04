# SPDX-License-Identifier: Apache-2.0
"""Packing across nodes: preferred node affinity on the labels of the agents.

The stock scheduler scores CPU and memory, not our resources. Preferences are never checked again
by kubelet, so a label that changes later harms no running pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpuslice.contract import names, pods
from gpuslice.contract.placement import Demand, Policy
from webhook.patching import Patch, Path

Json = Mapping[str, Any]

WEIGHT: Final = 20
"""Less than a preference that people write: theirs decides where they have one."""
PATH: Final[Path] = (
    "spec",
    "affinity",
    "nodeAffinity",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
_LABELS: Final = frozenset({names.PARTIAL_ROOM_LABEL, names.EMPTY_GPUS_LABEL})


def _term(*conditions: tuple[str, str, int]) -> dict[str, Any]:
    return {
        "weight": WEIGHT,
        "preference": {
            "matchExpressions": [
                {"key": key, "operator": operator, "values": [str(bound)]}
                for key, operator, bound in conditions
            ]
        },
    }


def terms(demand: Demand, policy: Policy, slices_per_gpu: int) -> list[dict[str, Any]]:
    """Return the preferences that a demand gets.

    Pack: nodes with room on a GPU already in use, and once more those where little more than that
    is free; the terms add up, so that comes near best fit. A share of several or of whole GPUs
    never fits a GPU in use in that sense, so it gets none. Spread: nodes with an empty GPU.
    """
    if policy is Policy.SPREAD:
        return [_term((names.EMPTY_GPUS_LABEL, "Gt", 0))]
    if demand.share.devices > 1 or demand.slices >= slices_per_gpu:
        return []
    label, least = names.PARTIAL_ROOM_LABEL, demand.slices - 1
    tight = demand.slices + max(1, slices_per_gpu // 10)
    return [_term((label, "Gt", least)), _term((label, "Gt", least), (label, "Lt", tight))]


def _is_ours(term: Json) -> bool:
    preference = term.get("preference") or {}
    expressions = preference.get("matchExpressions") or ()
    return (
        bool(expressions)
        and not preference.get("matchFields")
        and all(each.get("key") in _LABELS for each in expressions)
    )


def write(patch: Patch, pod: Json, wanted: Sequence[Json], *, admitted_before: bool) -> None:
    """Append the wanted preferences to a pod's own, replacing an earlier admission's."""
    node_affinity = (pods.spec_of(pod).get("affinity") or {}).get("nodeAffinity") or {}
    present = node_affinity.get(PATH[-1]) or []
    if admitted_before:
        stale = [
            index for index, term in enumerate(present) if _is_ours(term) and term not in wanted
        ]
        for index in reversed(stale):
            patch.drop((*PATH, index))
    for term in wanted:
        if term not in present:
            patch.append(PATH, term)
