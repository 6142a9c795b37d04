# SPDX-License-Identifier: Apache-2.0
"""Finding out from kubelet who got which tokens, and whom it has let go. One thread.

kubelet tells nobody. After each Allocate its checkpoint is read until the grant shows in it; while
finished pods have claims, kubelet is asked for them until it no longer knows them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from deviceplugin.checkpoint import UnreadableCheckpointError
from deviceplugin.podresources import CannotAskError
from gpuslice.contract.ledger import PodRef
from gpuslice.contract.names import PodUid

Tokens = Mapping[PodUid, frozenset[str]]


class Asking(Protocol):
    """What tells whether kubelet knows a pod; `PodResources` does."""

    def get(self, namespace: str, name: str) -> frozenset[str] | None:
        """Return its tokens, None where kubelet has let it go; CannotAskError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tempo:
    """How often kubelet is looked at, in seconds."""

    grant: float = 0.005
    """Between reads of the checkpoint while a grant is in flight: kubelet writes it at once."""
    leaving: float = 0.015
    """Between two questions about finished pods; kubelet answers 100 a second, to all its askers
    together, and takes 2 to 114 ms to let a pod go (measured on 1.36.3)."""
    fast: float = 3.0
    """After that long without news it is `slow`."""
    slow: float = 1.0
    idle: float = 60.0


class Readback:
    """Knows the tokens of each pod, and which finished pods kubelet has let go."""

    def __init__(
        self,
        read_checkpoint: Callable[[], Tokens],
        asking: Asking,
        *,
        is_granting: Callable[[], bool],
        on_change: Callable[[], None],
        clock: Callable[[], float],
        on_problem: Callable[[str], None] = lambda _: None,
        tempo: Tempo | None = None,
    ) -> None:
        """Be ready to start.

        Args:
            read_checkpoint: kubelet's entries; UnreadableCheckpointError.
            asking: kubelet's PodResources.
            is_granting: whether a grant is still in flight.
            on_change: told of each change of what is known.
            clock: seconds, monotonic.
            on_problem: told why kubelet can't be read, once for each new reason.
            tempo: how often.
        """
        self._read_checkpoint = read_checkpoint
        self._asking = asking
        self._is_granting = is_granting
        self._on_change = on_change
        self._clock = clock
        self._on_problem = on_problem
        self._tempo = tempo or Tempo()
        self._woken = threading.Condition()
        self._wakes = 0
        self._stopping = False
        self._tokens: Tokens = {}
        self._leaving: tuple[PodRef, ...] = ()
        self._released: frozenset[PodUid] = frozenset()
        self._news_at = clock()
        self._problems: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="readback", daemon=True)

    @property
    def tokens(self) -> Tokens:
        """What kubelet's checkpoint says; entries of dead pods are among them."""
        with self._woken:
            return self._tokens

    @property
    def released(self) -> frozenset[PodUid]:
        """Of the pods asked about, those that kubelet no longer knows."""
        with self._woken:
            return self._released

    def ask(self, leaving: tuple[PodRef, ...]) -> None:
        """Ask about these finished pods from now on, and about no others."""
        with self._woken:
            if set(leaving) == set(self._leaving):
                return
            uids = frozenset(pod.uid for pod in leaving)
            self._leaving, self._released = leaving, self._released & uids
        self.wake()

    def wake(self) -> None:
        """Look now: something has changed, or must have."""
        with self._woken:
            self._wakes += 1
            self._news_at = self._clock()
            self._woken.notify_all()

    def look(self) -> None:
        """Read the checkpoint once, in the caller's thread."""
        try:
            tokens = self._read_checkpoint()
        except UnreadableCheckpointError as error:
            self._report("checkpoint", str(error))
            return
        self._report("checkpoint", "")
        with self._woken:
            changed, self._tokens = tokens != self._tokens, tokens
            if changed:
                self._news_at = self._clock()
        if changed:
            self._on_change()

    def start(self) -> None:
        """Begin, with one look."""
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """End."""
        with self._woken:
            self._stopping = True
            self._woken.notify_all()
        self._thread.join()

    def _report(self, source: str, problem: str) -> None:
        """Tell of each new problem once."""
        if problem and problem != self._problems.get(source):
            self._on_problem(problem)
        self._problems[source] = problem

    def _run(self) -> None:
        while not self._stopping:
            with self._woken:
                seen = self._wakes
            self.look()
            asked = self._ask_next()
            with self._woken:
                if self._wakes == seen and not self._stopping:
                    self._woken.wait(self._pause(asked))

    def _pause(self, asked: bool) -> float:  # noqa: FBT001 - private, one caller
        granting = self._is_granting()
        if not granting and not asked:
            return self._tempo.idle
        if self._clock() - self._news_at > self._tempo.fast:
            return self._tempo.slow
        return self._tempo.grant if granting else self._tempo.leaving

    def _ask_next(self) -> bool:
        """Ask about one finished pod, each in its turn; return whether there are any."""
        with self._woken:
            waiting = [pod for pod in self._leaving if pod.uid not in self._released]
            if not waiting:
                return False
            pod = waiting[0]
            self._leaving = (*(each for each in self._leaving if each != pod), pod)
        try:
            has = self._asking.get(pod.namespace, pod.name)
        except CannotAskError as error:
            self._report("pod-resources", str(error))
            return True
        self._report("pod-resources", "")
        had = self.tokens.get(pod.uid, frozenset())
        # kubelet is asked by name: another pod may bear it by now, with other tokens or none.
        if has is not None and (not had or had & has):
            return True
        with self._woken:
            if pod in self._leaving:
                self._released |= {pod.uid}
                self._news_at = self._clock()
        self._on_change()
        return len(waiting) > 1
