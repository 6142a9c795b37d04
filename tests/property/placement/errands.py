# SPDX-License-Identifier: Apache-2.0
"""What an agent does aside: annotate pods, and look where reserved ones are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Protocol

from deviceplugin.reconciliation import Verdict
from gpuslice.contract import pods
from gpuslice.contract.ledger import PodRef
from gpuslice.contract.names import NodeName
from tests.property.placement import podmaking
from tests.property.placement.apiserver import PODS, NoAnswerError, Store
from tests.property.placement.wire import Wire


class World(Protocol):
    """What errands need of the world."""

    store: Store
    wire: Wire


class Errands:
    """One agent's: a newer errand of a name takes the place of an older one."""

    def __init__(
        self, world: World, node: NodeName, judge: Callable[[PodRef, Verdict | None], None]
    ) -> None:
        """Be empty; `judge` is told where a pod was found, None for here."""
        self._world = world
        self._node = node
        self._judge = judge
        self._waiting: dict[tuple[str, PodRef], Callable[[], None]] = {}
        self._annotated: dict[PodRef, Mapping[str, str]] = {}

    def __bool__(self) -> bool:
        """Whether there is one to do."""
        return bool(self._waiting)

    def do_one(self) -> None:
        """Do the oldest."""
        name = next(iter(self._waiting))
        errand = self._waiting.pop(name)
        with contextlib.suppress(NoAnswerError):
            errand()

    def annotate(self, wanting: Mapping[PodRef, Mapping[str, str]]) -> None:
        """Annotate these pods, those where it is not under way."""
        self._annotated = {pod: said for pod, said in self._annotated.items() if pod in wanting}
        for pod, wanted in wanting.items():
            if self._annotated.get(pod) != wanted:
                self._annotated[pod] = wanted
                self._waiting["annotate", pod] = self._annotating(pod, wanted)

    def look_for(self, pod: PodRef) -> None:
        """Read where a pod is now."""
        self._waiting["look for", pod] = lambda: self._judge(pod, self._whereabouts(pod))

    def _annotating(self, pod: PodRef, wanted: Mapping[str, str]) -> Callable[[], None]:
        def write() -> None:
            stored = self._world.store.get(PODS, pod.name)
            if stored is not None and podmaking.uid_of(stored.thing) == pod.uid:
                self._world.store.patch(PODS, pod.name, {"metadata": {"annotations": wanted}})

        def annotate() -> None:
            try:
                self._world.wire.call(write)
            except NoAnswerError:
                self._annotated.pop(pod, None)
                raise

        return annotate

    def _whereabouts(self, pod: PodRef) -> Verdict | None:
        stored = self._world.store.get(PODS, pod.name)
        if stored is None or podmaking.uid_of(stored.thing) != pod.uid:
            return Verdict.GONE
        node = pods.node_name(stored.thing)
        if node is None:
            return Verdict.UNBOUND
        return None if node == self._node else Verdict.ELSEWHERE
