# SPDX-License-Identifier: Apache-2.0
"""The way between the processes: requests that are lost, answered to nobody, or come late.

And the API server's side of a bind: it asks an arbiter, waits for it so long and no longer, then
writes the pod's node name and annotations in one go.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from gpuslice.contract.names import NodeName, PodUid
from tests.property.placement import podmaking
from tests.property.placement.apiserver import PODS, ConflictError, NoAnswerError, Store

T = TypeVar("T")

WEBHOOK_SECONDS: Final = 3.0
"""So long the API server waits for the arbiter."""
REQUEST_SECONDS: Final = 60.0
"""So long any request lives, at the API server too."""


class Fate(enum.Enum):
    """What becomes of a request."""

    ARRIVES = 0
    LOST = 1
    UNANSWERED = 2
    """It is carried out, and the answer is lost."""
    LATE = 3
    """It is carried out after its sender has given up, or has died."""


@dataclass(slots=True, kw_only=True)
class Bind:
    """One Binding on its way."""

    key: str
    uid: PodUid | None
    """None where a person binds by hand, until the arbiter has said of which pod it is."""
    node: NodeName
    began: float
    judged: bool = False
    """Whether the arbiter has answered, or is waited for no longer."""
    denied: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    by_arbiter: bool = True
    done: bool = False
    succeeded: bool = False


class Judge(Protocol):
    """An arbiter."""

    is_up: bool

    def ask(self, bind: Bind) -> None:
        """Take a bind to answer, some time."""


class Wire:
    """Requests under way."""

    def __init__(self, store: Store, clock: Callable[[], float], *, fails_closed: bool) -> None:
        """Carry requests to a store.

        Args:
            store: the API server's.
            clock: seconds.
            fails_closed: what `arbiterFailurePolicy` says.
        """
        self._store = store
        self._clock = clock
        self._fails_closed = fails_closed
        self.fate = Fate.ARRIVES
        """Of the next request."""
        self.binds: list[Bind] = []
        self._late: list[tuple[float, Callable[[], object]]] = []
        self.say: Callable[..., None] = lambda *_: None
        self.on_bound: Callable[[Bind], None] = lambda _: None

    def call(self, request: Callable[[], T]) -> T:
        """Carry out a request, if that is its fate; raises NoAnswerError."""
        fate, self.fate = self.fate, Fate.ARRIVES
        if fate is Fate.ARRIVES:
            return request()
        self.say("a request is {}", fate.name)
        if fate is Fate.LATE:
            self.post_late(request)
        elif fate is Fate.UNANSWERED:
            with contextlib.suppress(ConflictError):
                request()
        raise NoAnswerError

    def post_late(self, request: Callable[[], object]) -> None:
        """Carry out a request later: its sender hears nothing of it."""
        self._late.append((self._clock(), request))

    def bind(self, bind: Bind, judge: Judge) -> None:
        """Take a Binding from its sender."""
        self.binds.append(bind)
        if judge.is_up:
            judge.ask(bind)
        else:
            self._without_arbiter(bind)

    def forced(self) -> None:
        """Do what can't be put off: give up on arbiters, carry out or drop old requests."""
        now = self._clock()
        for bind in self.binds:
            if not bind.judged and now - bind.began > WEBHOOK_SECONDS:
                self._without_arbiter(bind)
        for bind in [bind for bind in self.binds if now - bind.began > REQUEST_SECONDS]:
            self.say("the Binding of {} is too old", bind.key)
            self._end(bind)
        self._late = [(at, each) for at, each in self._late if now - at <= REQUEST_SECONDS]

    def move(self, choice: int) -> bool:
        """Do one thing that is due; return whether there was one."""
        ready = [bind for bind in self.binds if bind.judged]
        count = len(ready) + len(self._late)
        if not count:
            return False
        number = choice % count
        if number < len(ready):
            self._store_bind(ready[number])
        else:
            _, request = self._late.pop(number - len(ready))
            self.say("a late request arrives")
            with contextlib.suppress(ConflictError):
                request()
        return True

    def _without_arbiter(self, bind: Bind) -> None:
        bind.judged, bind.by_arbiter = True, False
        bind.denied = self._fails_closed
        self.say("no arbiter answers for {}", bind.key)

    def _store_bind(self, bind: Bind) -> None:
        if not bind.denied:
            found = self._store.get(PODS, bind.key)
            fits = found is not None and bind.uid in (None, podmaking.uid_of(found.thing))
            if found is not None and fits and podmaking.waits(found.thing):
                pod = podmaking.bound(found.thing, bind.node, bind.annotations)
                bind.uid = podmaking.uid_of(pod)
                self.say("{} is bound to {}", bind.key, bind.node)
                self.on_bound(bind)
                self._store.put(PODS, bind.key, pod)
                bind.succeeded = True
        self._end(bind)

    def _end(self, bind: Bind) -> None:
        self.binds.remove(bind)
        bind.judged = bind.done = True
