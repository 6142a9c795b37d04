# SPDX-License-Identifier: Apache-2.0
"""Whether a change could help a pod that no node took: the stock scheduler's queueing hints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpuslice.sim.scheduler import affinity, taints
from gpuslice.sim.scheduler.fit import Filter
from gpuslice.sim.scheduler.views import Node, Pod

Hint = Callable[[Pod, frozenset[Filter]], bool]
"""Whether what happened could help a pod that these filters refused."""

_NOTHING: Final[Mapping[str, int]] = {}


def room_freed(_pod: Pod, refused_by: frozenset[Filter]) -> bool:
    """A pod that took room has ended, was deleted, or is not bound after all."""
    return Filter.RESOURCES in refused_by


def anything(_pod: Pod, _refused_by: frozenset[Filter]) -> bool:
    """It is time to look again, whatever happened."""
    return True


def node_changed(before: Node | None, after: Node) -> Hint:
    """Return the hint of a node that is new or has changed."""

    def helps(pod: Pod, refused_by: frozenset[Filter]) -> bool:
        if not refused_by:
            return before is None
        return any(_TURNS[by](pod, before, after) for by in refused_by)

    return helps


def _turn(allows: Callable[[Pod, Node], bool]) -> Callable[[Pod, Node | None, Node], bool]:
    def turns(pod: Pod, before: Node | None, after: Node) -> bool:
        return allows(pod, after) and (before is None or not allows(pod, before))

    return turns


def _has_more(pod: Pod, before: Node | None, after: Node) -> bool:
    """Whether the node could hold the pod if it were empty, and has more of what the pod asks."""
    old = _NOTHING if before is None else before.allocatable
    asked = [(name, amount) for name, amount in pod.requests.items() if name in after.allocatable]
    if len(asked) < sum(1 for name in pod.requests if name != "pods"):
        return False
    if any(amount > after.allocatable[name] for name, amount in asked):
        return False
    return before is None or any(after.allocatable[name] > old.get(name, 0) for name, _ in asked)


_TURNS: Final[Mapping[Filter, Callable[[Pod, Node | None, Node], bool]]] = {
    Filter.CORDON: _turn(taints.allow_cordoned),
    Filter.TAINTS: _turn(taints.allow),
    Filter.AFFINITY: _turn(affinity.allows),
    Filter.RESOURCES: _has_more,
}
