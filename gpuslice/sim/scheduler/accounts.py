# SPDX-License-Identifier: Apache-2.0
"""Who is on which node: all that the stock scheduler knows of a node's use is sums of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuslice.sim.scheduler.amounts import Amounts
from gpuslice.sim.scheduler.views import Pod

_NOTHING: Mapping[str, int] = {}


@dataclass(slots=True)
class _Sums:
    requests: dict[str, int] = field(default_factory=dict)
    scored: dict[str, int] = field(default_factory=dict)

    def add(self, pod: Pod, times: int) -> None:
        for sums, asked in ((self.requests, pod.requests), (self.scored, pod.scored_requests)):
            for name, amount in asked.items():
                sums[name] = sums.get(name, 0) + times * amount


class Accounts:
    """The pods that take room, those included that are only assumed to: being bound."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[Pod, str]] = {}
        self._sums: dict[str, _Sums] = {}

    def place(self, pod: Pod, node: str) -> None:
        """Count a pod on a node, and on no other."""
        self.remove(pod.uid)
        self._places[pod.uid] = (pod, node)
        self._sums.setdefault(node, _Sums()).add(pod, 1)

    def remove(self, uid: str) -> bool:
        """Count a pod no longer; return whether it was counted."""
        found = self._places.pop(uid, None)
        if found is None:
            return False
        pod, node = found
        self._sums[node].add(pod, -1)
        return True

    def node_of(self, uid: str) -> str:
        """Return the node that a pod is counted on, empty for none."""
        found = self._places.get(uid)
        return found[1] if found else ""

    def used(self, node: str) -> Amounts:
        """Return the requests on a node, in sum."""
        sums = self._sums.get(node)
        return sums.requests if sums else _NOTHING

    def scored(self, node: str) -> Amounts:
        """Return CPU and memory on a node as scoring counts them."""
        sums = self._sums.get(node)
        return sums.scored if sums else _NOTHING
