# SPDX-License-Identifier: Apache-2.0
"""A model of the stock scheduler: sums of resources, one pod at a time, caches that lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol

from gpuslice.contract import pods
from gpuslice.contract.names import NodeName, PodUid
from tests.property.placement import podmaking
from tests.property.placement.apiserver import NODES, PODS, Cache, Json, Store
from tests.property.placement.watching import Watching
from tests.property.placement.wire import Bind, Wire

BACKOFF_SECONDS: Final = 1.5
"""After an error; measured. It grows, which changes no history."""


class World(Protocol):
    """What the scheduler needs of the world."""

    store: Store
    wire: Wire
    now: float

    def send(self, bind: Bind, choice: int) -> None:
        """Send a Binding."""

    def say(self, text: str, *about: object) -> None:
        """Note what happens."""


class Scheduler(Watching):
    """One process; a restart is a new one, which knows nothing of the binds under way."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._assumed: dict[PodUid, Bind] = {}
        self._not_before: dict[PodUid, float] = {}
        self._tried: dict[PodUid, int] = {}
        self._news = 0
        self.nodes = Cache(world.store, NODES, on_put=self._note, on_end=self._note)
        self.pods = Cache(world.store, PODS, on_put=self._note, on_end=self._note)
        self.caches = (self.nodes, self.pods)
        for cache in self.caches:
            cache.list()

    def _note(self, _: object) -> None:
        self._news += 1

    def move(self, choice: int) -> bool:
        """Take an answer, or try one pod; return whether there was anything to do."""
        for uid, bind in self._assumed.items():
            if bind.done:
                self._take_answer(uid, bind)
                return True
        waiting = [
            stored.thing
            for stored in self.pods.all()
            if podmaking.waits(stored.thing) and self._may_try(podmaking.uid_of(stored.thing))
        ]
        if not waiting:
            return False
        pod = waiting[choice % len(waiting)]
        uid = podmaking.uid_of(pod)
        self._tried[uid] = self._news
        node = self._choose(podmaking.limits_of(pod), choice)
        if node is not None:
            key = pod["metadata"]["name"]
            bind = Bind(key=key, uid=uid, node=node, began=self._world.now)
            self._assumed[uid] = bind
            self._world.say("scheduler: {} is to go to {}", key, node)
            self._world.send(bind, choice)
        return True

    def forget_answer(self, choice: int) -> None:
        """Lose the answer to a bind that is under way."""
        waiting = list(self._assumed)
        if waiting:
            uid = waiting[choice % len(waiting)]
            self._world.say("scheduler: never hears of {}", self._assumed[uid].key)
            self._fail(uid)

    def _may_try(self, uid: PodUid) -> bool:
        return (
            uid not in self._assumed
            and self._not_before.get(uid, 0.0) <= self._world.now
            and self._tried.get(uid) != self._news
        )

    def _take_answer(self, uid: PodUid, bind: Bind) -> None:
        if not bind.succeeded:
            self._fail(uid)
            return
        # The pod counts as bound there until the watch says so itself.
        stored = self.pods.get(bind.key)
        if (
            stored is None
            or podmaking.uid_of(stored.thing) != uid
            or not podmaking.waits(stored.thing)
        ):
            del self._assumed[uid]
        else:
            bind.done = False

    def settle(self) -> None:
        """Look again at the binds that have succeeded: has the watch told of them?"""
        for bind in self._assumed.values():
            bind.done = bind.done or bind.succeeded

    def _fail(self, uid: PodUid) -> None:
        del self._assumed[uid]
        self._not_before[uid] = self._world.now + BACKOFF_SECONDS
        self._tried.pop(uid, None)
        self._news += 1

    def _choose(self, limits: Mapping[str, str], choice: int) -> NodeName | None:
        nodes = sorted(self.nodes.all(), key=lambda node: node.key)
        for number in range(len(nodes)):
            node = nodes[(choice + number) % len(nodes)]
            allocatable = node.thing["status"]["allocatable"]
            used = self._used(NodeName(node.key))
            if all(
                used[resource] + int(value) <= int(allocatable.get(resource, 0))
                for resource, value in limits.items()
            ):
                return NodeName(node.key)
        return None

    def _used(self, node: NodeName) -> Counter[str]:
        used: Counter[str] = Counter()
        for stored in self.pods.all():
            pod: Json = stored.thing
            assumed = self._assumed.get(podmaking.uid_of(pod))
            where = pods.node_name(pod) or (assumed.node if assumed else None)
            if where == node and not pods.has_ended(pod):
                for resource, value in podmaking.limits_of(pod).items():
                    used[resource] += int(value)
        return used

    def hear(self) -> bool:
        """Hear all that there is to hear; return whether there was anything."""
        heard = super().hear()
        if heard:
            self.settle()
        return heard

    def hear_some(self, choice: int) -> None:
        """Hear one event in some of the caches."""
        super().hear_some(choice)
        self.settle()

    def relist(self) -> None:
        """Lose the watches, and begin anew."""
        super().relist()
        self.settle()
