# SPDX-License-Identifier: Apache-2.0
"""Taints and tolerations.

Source: Kubernetes api/core/v1/toleration.go.
"""

from __future__ import annotations

from typing import Final

from gpuslice.sim.scheduler.views import Json, Node, Pod

_KEEP_AWAY: Final = ("NoSchedule", "NoExecute")
CORDON: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
"""What a cordoned node counts as bearing."""


def tolerates(toleration: Json, taint: Json) -> bool:
    """Whether one toleration covers one taint."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Exists":
        return True
    if not toleration.get("key"):
        return False
    return (toleration.get("value") or "") == (taint.get("value") or "")


def is_tolerated(pod: Pod, taint: Json) -> bool:
    """Whether a pod tolerates one taint."""
    return any(tolerates(each, taint) for each in pod.tolerations)


def allow(pod: Pod, node: Node) -> bool:
    """Whether none of a node's taints keeps a pod away."""
    return all(
        is_tolerated(pod, taint) for taint in node.taints if taint.get("effect") in _KEEP_AWAY
    )


def allow_cordoned(pod: Pod, node: Node) -> bool:
    """Whether a node isn't cordoned, or the pod doesn't mind."""
    return not node.is_cordoned or is_tolerated(pod, CORDON)


def unwelcome(pod: Pod, node: Node) -> int:
    """Count the taints that only ask a pod to prefer other nodes."""
    return sum(
        1
        for taint in node.taints
        if taint.get("effect") == "PreferNoSchedule" and not is_tolerated(pod, taint)
    )
