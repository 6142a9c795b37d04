# SPDX-License-Identifier: Apache-2.0
"""One scheduling cycle: one pod, all nodes, one decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from gpuslice.sim.scheduler.accounts import Accounts
from gpuslice.sim.scheduler.fit import Filter, Refusal, refusal
from gpuslice.sim.scheduler.scores import scores
from gpuslice.sim.scheduler.views import Node, Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The node that a pod is to be bound to."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unschedulable:
    """No node takes a pod."""

    message: str
    refused_by: frozenset[Filter]
    """The filters whose mind must change."""


def decide(
    pod: Pod,
    nodes: Collection[Node],
    accounts: Accounts,
    pick: Callable[[Sequence[str]], str],
) -> Chosen | Unschedulable:
    """Return where a pod goes.

    Args:
        pod: what is to be placed.
        nodes: all that there are.
        accounts: who is on them.
        pick: chooses among the names of equally good nodes; the stock scheduler does so at random.
    """
    refusals = []
    open_nodes = []
    for node in nodes:
        refused = refusal(pod, node, accounts.used(node.name))
        if refused is None:
            open_nodes.append(node)
        else:
            refusals.append(refused)
    if not open_nodes:
        return Unschedulable(
            message=words(refusals), refused_by=frozenset(each.by for each in refusals)
        )
    if len(open_nodes) == 1:
        return Chosen(node=open_nodes[0].name)
    scored = scores(pod, open_nodes, accounts)
    best = max(scored)
    names = [node.name for node, score in zip(open_nodes, scored, strict=True) if score == best]
    return Chosen(node=pick(names))


def words(refusals: Sequence[Refusal]) -> str:
    """Say why no node takes a pod, as the stock scheduler does.

    Preemption isn't simulated: where a real scheduler would evict pods of a lower priority, this
    one says that it found none.

    Source: Kubernetes pkg/scheduler/framework/types.go, FitError; plugins/dynamicresources and
    plugins/defaultpreemption for what follows the reasons (v1.36).
    """
    if not refusals:
        return "no nodes available to schedule pods"
    total = len(refusals)
    reasons = Counter(reason for each in refusals for reason in each.reasons)
    final = sum(1 for each in refusals if each.is_final)
    preemption = Counter(
        {
            "Preemption is not helpful for scheduling": final,
            "No preemption victims found for incoming pod": total - final,
        }
    )
    return (
        f"{_counted(total, reasons)} no new claims to deallocate, "
        f"preemption: {_counted(total, preemption)}"
    )


def _counted(total: int, reasons: Counter[str]) -> str:
    # Sorted as texts, counts first, as the original does.
    parts = sorted(f"{count} {reason}" for reason, count in reasons.items() if count)
    return f"0/{total} nodes are available: {', '.join(parts)}."
