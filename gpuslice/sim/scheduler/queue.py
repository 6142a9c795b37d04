# SPDX-License-Identifier: Apache-2.0
"""The pods that wait: by priority, then first come, first served; pure, with an injected clock.

A pod is in one of four places: `active` (to be tried next), `parked` (no node took it: until a
change that could help), `backing off` (its bind failed: until a time that no event shortens), or
`in flight` (being tried or bound).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpuslice.sim.scheduler.fit import Filter
from gpuslice.sim.scheduler.hints import Hint
from gpuslice.sim.scheduler.views import Pod

# Measured on Kubernetes 1.36.3 up to the third: back-offs of 1, 2 and 4 s, and what the queue adds
# by looking once a second. Later ones follow the same rule, up to its limit of 10 s.
FIRST_PAUSE_SECONDS: Final = (1.5, 2.0)
PAUSES_SECONDS: Final = (3.0, 5.0, 9.0, 11.0)
PARKED_LIMIT_SECONDS: Final = 300.0
"""After this a parked pod is tried again, whether or not something happened."""


@dataclass(slots=True)
class _Entry:
    pod: Pod
    since: float
    """When it joined, or was last refused."""
    errors: int = 0
    """Binds that failed in a row."""
    due: float = 0.0
    refused_by: frozenset[Filter] = frozenset()
    ticket: int = 0
    """Of its latest place in a heap; what older ones say no longer counts."""


@dataclass(slots=True)
class _Flight:
    entry: _Entry
    hints: list[Hint] = field(default_factory=list)
    """What happened since it was taken."""
    is_chosen: bool = False
    """Whether it has a node: then only its bind can fail."""


class Queue:
    """The queue; not thread-safe.

    Args:
        clock: seconds, only ever forwards.
        jitter: a number in [0, 1).
    """

    def __init__(self, *, clock: Callable[[], float], jitter: Callable[[], float]) -> None:
        self._clock = clock
        self._jitter = jitter
        self._number = 0
        self._active_heap: list[tuple[int, float, int, _Entry]] = []
        self._due_heap: list[tuple[float, int, _Entry]] = []
        self._active: dict[str, _Entry] = {}
        self._parked: dict[str, _Entry] = {}
        self._backing_off: dict[str, _Entry] = {}
        self._in_flight: dict[str, _Flight] = {}

    def __len__(self) -> int:
        return sum(
            len(place) for place in (self._active, self._parked, self._backing_off, self._in_flight)
        )

    def __contains__(self, uid: str) -> bool:
        return any(
            uid in place
            for place in (self._active, self._parked, self._backing_off, self._in_flight)
        )

    def put(self, pod: Pod) -> None:
        """Take a pod that is new or has changed.

        A change of its own may be what a parked pod waited for; one that backs off goes on to.
        """
        uid = pod.uid
        if uid in self._in_flight:
            self._in_flight[uid].entry.pod = pod
        elif uid in self._backing_off:
            self._backing_off[uid].pod = pod
        elif uid in self._parked:
            entry = self._parked[uid]
            is_other = _matters(entry.pod) != _matters(pod)
            entry.pod = pod
            if is_other:
                del self._parked[uid]
                self._activate(entry)
        elif uid in self._active:
            entry = self._active[uid]
            is_other = entry.pod.priority != pod.priority
            entry.pod = pod
            if is_other:
                self._activate(entry)
        else:
            self._activate(_Entry(pod=pod, since=self._clock()))

    def remove(self, uid: str) -> None:
        """Forget a pod: it is gone, bound, or no longer to be placed."""
        for place in (self._active, self._parked, self._backing_off):
            place.pop(uid, None)
        self._in_flight.pop(uid, None)

    def take(self) -> Pod | None:
        """Return the pod to try next, None while there is none."""
        self._wake()
        while self._active_heap:
            _, _, ticket, entry = heapq.heappop(self._active_heap)
            uid = entry.pod.uid
            if self._active.get(uid) is entry and entry.ticket == ticket:
                del self._active[uid]
                self._in_flight[uid] = _Flight(entry)
                return entry.pod
        return None

    def next_wake_seconds(self) -> float | None:
        """Return how long until a pod's time comes by itself, None while none has a time."""
        times = [entry.due for entry in self._backing_off.values()]
        times += [entry.since + PARKED_LIMIT_SECONDS for entry in self._parked.values()]
        return max(0.0, min(times) - self._clock()) if times else None

    def chosen(self, pod: Pod) -> None:
        """Keep a pod in flight until its bind is known to have worked or failed."""
        if flight := self._in_flight.get(pod.uid):
            flight.is_chosen = True
            flight.hints.clear()

    def refused(self, pod: Pod, refused_by: frozenset[Filter]) -> None:
        """Park a pod that no node took, unless something happened meanwhile that could help."""
        flight = self._in_flight.pop(pod.uid, None)
        if flight is None:
            return
        entry = flight.entry
        entry.since, entry.errors, entry.refused_by = self._clock(), 0, refused_by
        if any(hint(entry.pod, refused_by) for hint in flight.hints):
            self._activate(entry)
        else:
            self._parked[pod.uid] = entry

    def failed(self, pod: Pod) -> float | None:
        """Let a pod back off whose bind failed.

        Returns:
            For how many seconds; None where the pod is gone or bound, and so waits no more.
        """
        flight = self._in_flight.pop(pod.uid, None)
        if flight is None:
            return None
        entry = flight.entry
        pause = self._pause_seconds(entry.errors)
        entry.errors += 1
        entry.since = self._clock()
        entry.due = entry.since + pause
        self._backing_off[pod.uid] = entry
        heapq.heappush(self._due_heap, (entry.due, self._ticket(entry), entry))
        return pause

    def happened(self, hint: Hint) -> None:
        """Try again the parked pods that an event could help; those in flight remember it."""
        for flight in self._in_flight.values():
            if not flight.is_chosen:
                flight.hints.append(hint)
        for uid, entry in list(self._parked.items()):
            if hint(entry.pod, entry.refused_by):
                del self._parked[uid]
                self._activate(entry)

    def _pause_seconds(self, errors: int) -> float:
        if errors == 0:
            least, most = FIRST_PAUSE_SECONDS
            return least + (most - least) * self._jitter()
        return PAUSES_SECONDS[min(errors, len(PAUSES_SECONDS)) - 1]

    def _activate(self, entry: _Entry) -> None:
        self._active[entry.pod.uid] = entry
        order = (-entry.pod.priority, entry.since, self._ticket(entry), entry)
        heapq.heappush(self._active_heap, order)

    def _ticket(self, entry: _Entry) -> int:
        self._number += 1
        entry.ticket = self._number
        return entry.ticket

    def _wake(self) -> None:
        now = self._clock()
        while self._due_heap and self._due_heap[0][0] <= now:
            _, ticket, entry = heapq.heappop(self._due_heap)
            if self._backing_off.get(entry.pod.uid) is entry and entry.ticket == ticket:
                del self._backing_off[entry.pod.uid]
                self._activate(entry)
        for uid, entry in list(self._parked.items()):
            if now - entry.since >= PARKED_LIMIT_SECONDS:
                del self._parked[uid]
                self._activate(entry)


def _matters(pod: Pod) -> tuple[object, ...]:
    """Return what of a pod decides where it can go."""
    return (
        pod.requests,
        pod.priority,
        pod.node_selector,
        pod.required_terms,
        pod.tolerations,
        pod.content["metadata"].get("labels"),
    )
