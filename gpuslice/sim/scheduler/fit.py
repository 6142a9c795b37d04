# SPDX-License-Identifier: Apache-2.0
"""Whether a node takes a pod: the filters of the stock scheduler that matter here, in its order.

The first filter that refuses speaks for its node.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpuslice.sim.scheduler import affinity, taints
from gpuslice.sim.scheduler.amounts import PODS, Amounts
from gpuslice.sim.scheduler.views import Node, Pod


class Filter(enum.StrEnum):
    """A filter, by the stock scheduler's name for it."""

    CORDON = "NodeUnschedulable"
    TAINTS = "TaintToleration"
    AFFINITY = "NodeAffinity"
    RESOURCES = "NodeResourcesFit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why one node doesn't take a pod."""

    by: Filter
    reasons: tuple[str, ...]
    is_final: bool
    """Whether no pod's leaving would change it."""


def refusal(pod: Pod, node: Node, used: Amounts) -> Refusal | None:
    """Return why a node doesn't take a pod, None where it does.

    Args:
        pod: what is to be placed.
        node: where.
        used: the sums of requests there.
    """
    if not taints.allow_cordoned(pod, node):
        return Refusal(by=Filter.CORDON, reasons=("node(s) were unschedulable",), is_final=True)
    if not taints.allow(pod, node):
        reason = "node(s) had untolerated taint(s)"
        return Refusal(by=Filter.TAINTS, reasons=(reason,), is_final=True)
    if not affinity.allows(pod, node):
        reason = "node(s) didn't match Pod's node affinity/selector"
        return Refusal(by=Filter.AFFINITY, reasons=(reason,), is_final=True)
    return _insufficient(pod, node, used)


def _insufficient(pod: Pod, node: Node, used: Amounts) -> Refusal | None:
    reasons = []
    is_final = False
    for name, asked in pod.requests.items():
        allocatable = node.allocatable.get(name, 0)
        if name == PODS and name not in node.allocatable:
            # A real kubelet always says how many it takes; a node of a test may leave it out.
            continue
        if asked > 0 and used.get(name, 0) + asked > allocatable:
            reasons.append("Too many pods" if name == PODS else f"Insufficient {name}")
            is_final = is_final or asked > allocatable
    if not reasons:
        return None
    return Refusal(by=Filter.RESOURCES, reasons=tuple(reasons), is_final=is_final)
