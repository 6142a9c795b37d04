# SPDX-License-Identifier: Apache-2.0
"""A model of kubelet and of the containers it runs; containers live on when kubelet dies.

Sources: facts of Kubernetes 1.36, pkg/kubelet: kubelet.go (HandlePodAdditions),
cm/devicemanager/manager.go (devicesToAllocate), lifecycle/predicate.go.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from gpuslice.contract import names, pods
from gpuslice.contract.ledger import Part
from gpuslice.contract.names import NodeName, PodUid
from gpuslice.contract.tokens import parse_token
from tests.property.placement import podmaking
from tests.property.placement.apiserver import NODES, PODS, Cache, Json, Store, Stored
from tests.property.placement.containers import Admission, Known, Plugin, Process

NODE_LAG_SECONDS: Final = 0.05
"""kubelet's copy of its Node is never older than that: what the arbiter's hold is for."""
KILL_SECONDS: Final = 5.0
"""A force-deleted pod's processes live so long, while kubelet runs (measured: 2 s)."""


class World(Protocol):
    """What a kubelet needs of the world."""

    store: Store
    processes: dict[PodUid, Process]
    finished: set[PodUid]
    now: float

    def say(self, text: str, *about: object) -> None:
        """Note what happens."""

    def refused(self, node: NodeName, pod: Json, reason: str, *, restarting: bool) -> None:
        """Learn that kubelet has failed a pod."""

    def started(self) -> None:
        """Learn that a container runs."""


class Kubelet:
    """One node's kubelet."""

    def __init__(self, world: World, node: NodeName) -> None:
        self._world = world
        self.node = node
        self.checkpoint: dict[PodUid, frozenset[str]] = {}
        """What is in its file: entries of dead pods stay until the next is written."""
        self._given: dict[PodUid, tuple[Part, ...]] = {}
        """The answers in that file: what containers are told of their GPUs."""
        self.dying: dict[PodUid, float] = {}
        """Processes that no pod of the API server stands for, and until when they live."""
        self.plugin: Plugin
        self.is_up = True
        self._begin()

    def _begin(self) -> None:
        store = self._world.store
        self.known: dict[PodUid, Known] = {}
        self._waiting: list[PodUid] = []
        self._devices = dict(self.checkpoint)
        self.healthy: frozenset[str] | None = None
        self.admission: Admission | None = None
        self._said_slices = -1
        self.pods = Cache(
            store,
            PODS,
            wants=lambda pod: pods.node_name(pod) == self.node,
            on_put=self._hear_pod,
            on_end=self._hear_end,
        )
        self.nodes = Cache(
            store, NODES, wants=lambda node: bool(node["metadata"]["name"] == self.node)
        )
        self.pods.list()
        self.nodes.list()
        self._first = set(self._waiting)
        """Pods of the first list: until they are through, no tokens are freed."""
        for uid, process in self._world.processes.items():
            if process.node == self.node and uid not in self._waiting:
                self.dying.setdefault(uid, self._world.now + KILL_SECONDS)

    # --- life

    def kill(self) -> None:
        self.is_up = False
        self.admission = None
        self.healthy = None
        self.known, self._waiting = {}, []
        self.plugin.stream_ended()

    def start(self) -> None:
        self.is_up = True
        self._begin()

    def stream_ended(self) -> None:
        """Learn that the plugin is gone: all its tokens are unhealthy."""
        self.healthy = None

    def stream_opened(self) -> None:
        self.healthy = self.plugin.shown()

    # --- what it hears

    def _hear_pod(self, stored: Stored) -> None:
        uid = podmaking.uid_of(stored.thing)
        known = self.known.get(uid)
        if known is not None:
            known.is_deleting = podmaking.is_deleting(stored.thing)
        elif uid not in self._waiting:
            self._waiting.append(uid)

    def _hear_end(self, stored: Stored) -> None:
        uid = podmaking.uid_of(stored.thing)
        self.known.pop(uid, None)
        if uid in self._waiting:
            self._waiting.remove(uid)
        self._first.discard(uid)
        if uid in self._world.processes:
            self.dying[uid] = self._world.now + KILL_SECONDS

    def hear(self) -> bool:
        """Hear all that there is to hear; pods not while one is being admitted."""
        if not self.is_up:
            return False
        if self.plugin.is_streaming and self.healthy != self.plugin.shown():
            self.healthy = self.plugin.shown()
        heard = self.nodes.hear()
        if self.admission is None:
            heard = self.pods.hear() or heard
        return heard

    def hear_some(self, choice: int) -> None:
        """Hear one event in some of the caches."""
        if self.is_up and choice & 1 and self.admission is None:
            self.pods.hear(1)
        if self.is_up and choice & 2:
            self.nodes.hear(1)

    def relist(self) -> None:
        """Lose the watches, and begin anew."""
        if self.is_up and self.admission is None:
            self.pods.list()
            self.nodes.list()

    def forced(self) -> None:
        """Do what can't be put off."""
        now = self._world.now
        if not self.is_up:
            return
        self.nodes.hear_until(now - NODE_LAG_SECONDS)
        for uid in [uid for uid, until in self.dying.items() if until <= now]:
            self._bury(uid)

    def knows(self, key: str) -> bool:
        """Answer PodResources Get."""
        return any(known.key == key and known.is_active for known in self.known.values())

    # --- what it does

    def move(self, choice: int) -> bool:
        """Do one thing; return whether there was one to do."""
        if not self.is_up:
            return False
        if self.admission is not None:
            self._allocate(self.admission, choice)
            return True
        dues = self._dues(choice)
        if not dues:
            return False
        dues[choice % len(dues)]()
        return True

    def _dues(self, choice: int) -> list[Callable[[], None]]:
        dues: list[Callable[[], None]] = []
        if self._waiting:
            uid = self._waiting[choice // 3 % len(self._waiting)]
            dues.append(lambda: self._admit(uid))
        for known in self.known.values():
            due = self._due(known)
            if due is not None:
                dues.append(due)
        slices = len(self.healthy or ())
        if slices != self._said_slices:
            dues.append(lambda: self._say_slices(slices))
        return dues

    def _due(self, known: Known) -> Callable[[], None] | None:
        if known.told != known.phase:
            return lambda: self._tell(known)
        if known.phase in ("Succeeded", "Failed"):
            if known.is_active:
                return lambda: self._let_go(known)
            return (lambda: self._delete(known)) if known.is_deleting else None
        if known.is_deleting:
            return lambda: self._end(known, "Failed")
        return None

    def _tell(self, known: Known) -> None:
        known.told = known.phase
        stored = self._world.store.get(PODS, known.key)
        if stored is not None and podmaking.uid_of(stored.thing) == known.uid:
            self._world.say("kubelet: {} is {}", known.key, known.phase)
            self._world.store.put(PODS, known.key, podmaking.phased(stored.thing, known.phase))

    def _let_go(self, known: Known) -> None:
        self._world.say("kubelet: lets {} go", known.key)
        known.is_active = False

    def _delete(self, known: Known) -> None:
        stored = self._world.store.get(PODS, known.key)
        if stored is not None and podmaking.uid_of(stored.thing) == known.uid:
            self._world.store.delete(PODS, known.key)
        self.known.pop(known.uid, None)

    def _end(self, known: Known, phase: str) -> None:
        self._world.processes.pop(known.uid, None)
        known.phase = phase

    def finish(self, uid: PodUid) -> None:
        """Have a container end by itself."""
        known = self.known.get(uid)
        if known is not None and known.phase == "Running":
            self._world.finished.add(uid)
            self._end(known, "Succeeded")

    def _bury(self, uid: PodUid) -> None:
        self.dying.pop(uid)
        if self._world.processes.pop(uid, None) is not None:
            self._world.say("kubelet: kills what is left of {}", uid)

    def _say_slices(self, slices: int) -> None:
        self._said_slices = slices
        amount = {names.SLICE_RESOURCE: str(slices)}
        patch = {"status": {"capacity": amount, "allocatable": amount}}
        self._world.store.patch(NODES, self.node, patch)

    # --- admission

    def _admit(self, uid: PodUid) -> None:
        """Begin to admit a pod: see who is dead, and ask the plugin what it prefers."""
        self._waiting.remove(uid)
        stored = next(each for each in self.pods.all() if podmaking.uid_of(each.thing) == uid)
        known = self.known[uid] = Known(uid, stored.key)
        known.is_deleting = podmaking.is_deleting(stored.thing)
        known.phase = known.told = stored.thing["status"]["phase"]
        if pods.has_ended(stored.thing):
            known.is_active = False
            self._first.discard(uid)
            return
        if not self._first:
            self._free_dead()
        runs = uid in self._world.processes
        if self._first and runs:
            self._check_fits(stored)  # what runs keeps what it has
            return
        if not self.healthy:
            self._refuse(stored, "no healthy devices present")
        elif uid in self._devices:
            if self._devices[uid] <= self.healthy:
                self._check_fits(stored)
            else:
                self._refuse(stored, "previously allocated devices are no longer healthy")
        else:
            self._ask(stored, self.healthy)

    def _ask(self, stored: Stored, healthy: frozenset[str]) -> None:
        available = healthy.difference(*self._devices.values())
        size = int(podmaking.limits_of(stored.thing)[podmaking.RESOURCE])
        if len(available) < size:
            text = f"requested number of devices unavailable: {size} of {len(available)}"
            self._refuse(stored, text)
            return
        preferred = self.plugin.prefer(available, size)
        self.admission = Admission(stored, available, preferred)

    def _allocate(self, admission: Admission, choice: int) -> None:
        self.admission = None
        stored = admission.stored
        uid = podmaking.uid_of(stored.thing)
        if self.healthy is None:
            self._refuse(stored, "the plugin is gone")
            return
        chance = random.Random(choice)
        size = int(podmaking.limits_of(stored.thing)[podmaking.RESOURCE])
        picked = [each for each in admission.preferred if each in admission.available]
        chance.shuffle(picked)
        others = sorted(admission.available.difference(picked))
        chance.shuffle(others)
        picked = (picked + others)[:size]
        answer = self.plugin.allocate(picked)
        if isinstance(answer, str):
            self._refuse(stored, answer)
            return
        self._given[uid] = answer
        self._devices[uid] = frozenset(picked)
        self.checkpoint = dict(self._devices)
        self._check_fits(stored)

    def _free_dead(self) -> None:
        active = {known.uid for known in self.known.values() if known.is_active}
        self._devices = {uid: ids for uid, ids in self._devices.items() if uid in active}

    def _check_fits(self, stored: Stored) -> None:
        """Add up the fits, once, against the Node as it is known here."""
        limits = podmaking.limits_of(stored.thing)
        uid = podmaking.uid_of(stored.thing)
        node = self.nodes.get(self.node)
        assert node is not None
        allocatable = node.thing["status"]["allocatable"]
        things = {podmaking.uid_of(each.thing): each.thing for each in self.pods.all()}
        used: Counter[str] = Counter()
        for known in self.known.values():
            if known.is_active and known.uid != uid:
                used.update(podmaking.limits_of(things[known.uid]).keys())
        for resource in limits:
            is_fit = resource.startswith(names.FIT_PREFIX)
            if is_fit and resource in allocatable and used[resource] >= int(allocatable[resource]):
                text = f"OutOf{resource}: {used[resource]} used of {allocatable[resource]}"
                self._refuse(stored, text)
                return
        self._run(stored)

    def _run(self, stored: Stored) -> None:
        uid = podmaking.uid_of(stored.thing)
        self._first.discard(uid)
        known = self.known[uid]
        if uid in self._world.finished:
            known.phase = "Succeeded"
            return
        known.phase = "Running"
        if uid in self._world.processes:
            return
        self._world.say("kubelet: {} runs", stored.key)
        slices = Counter(parse_token(each)[0] for each in self._devices[uid])
        self._world.processes[uid] = Process(uid, self.node, slices, self._given[uid])
        self._world.started()

    def _refuse(self, stored: Stored, reason: str) -> None:
        uid = podmaking.uid_of(stored.thing)
        restarting = bool(self._first)
        self._first.discard(uid)
        self._world.processes.pop(uid, None)
        known = self.known[uid]
        known.phase, known.is_active = "Failed", False
        self._world.say("kubelet: {} is refused: {}", stored.key, reason)
        self._world.refused(self.node, stored.thing, reason, restarting=restarting)

    def tokens_of(self, uid: PodUid) -> frozenset[str]:
        return self._devices.get(uid, frozenset())

    def is_idle(self) -> bool:
        """Whether nothing waits to be admitted."""
        return not self._waiting and self.admission is None
