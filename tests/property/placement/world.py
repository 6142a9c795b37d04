# SPDX-License-Identifier: Apache-2.0
"""All processes of a small cluster, and the clock: who moves when is the history's choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gpuslice.contract import pods
from gpuslice.contract.ledger import ClaimState, Gpu, Ledger
from gpuslice.contract.names import GpuUuid, NodeName, PodUid
from gpuslice.contract.placement import Demand, Policy
from tests.property.placement import podmaking, truths
from tests.property.placement.agents import Agent
from tests.property.placement.apiserver import GPU_NODES, NODES, PODS, Event, Json, Store
from tests.property.placement.arbiters import Arbiter
from tests.property.placement.containers import Process
from tests.property.placement.decisions import Decisions
from tests.property.placement.excuses import Accounts, Excuse
from tests.property.placement.kubelets import Kubelet
from tests.property.placement.scheduler import Scheduler
from tests.property.placement.truths import ViolationError
from tests.property.placement.wire import Bind, Fate, Wire

MAX_PODS: Final = 9
MOST_MOVES: Final = 5000
"""Of one flow: more means that two processes undo each other's work for ever."""
STEP_SECONDS: Final = 0.01


class Actor(Protocol):
    """A process that hears and moves."""

    def hear(self) -> bool:
        """Hear all that there is to hear; return whether there was anything."""

    def hear_some(self, choice: int) -> None:
        """Hear a part of it."""

    def move(self, choice: int) -> bool:
        """Do one thing; return whether there was one to do."""


class Mortal(Protocol):
    """A process that may die."""

    is_up: bool

    def start(self) -> None:
        """Start anew, knowing nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where a history happens."""

    gpus_per_node: tuple[int, ...]
    palette: tuple[Demand, ...]
    fails_closed: bool = True
    """`arbiterFailurePolicy: Fail`."""
    has_strangers: bool = False
    """Whether pods are bound without an arbiter."""
    has_deaths: bool = False
    """Whether kubelets and device plugins die without notice."""
    has_sick: bool = False
    """Whether GPUs turn sick."""


class World:
    """The cluster."""

    def __init__(self, scene: Scene, decisions: Decisions) -> None:
        self.scene = scene
        self.decisions = decisions
        self.now = 1000.0
        self.trace: list[tuple[float, str, tuple[object, ...]]] = []
        self.processes: dict[PodUid, Process] = {}
        self.finished: set[PodUid] = set()
        self.unheard: set[PodUid] = set()
        """Strangers deleted by force before the ledger held their claim: nobody knows of them."""
        self.mistaken: set[PodUid] = set()
        """Strangers taken for pods of another share: the ledger can't say what they have."""
        self.sick: set[GpuUuid] = set()
        self.demands = scene.palette
        self.exceptions: list[Excuse] = []
        self.moves = 0
        self.runs = 0
        self._made = 0
        self.store = Store(lambda: self.now)
        self.accounts = Accounts(self.store)
        self.store.on_write = self._written
        self.wire = Wire(self.store, lambda: self.now, fails_closed=scene.fails_closed)
        self.wire.say = self.say
        self.wire.on_bound = lambda bind: self.accounts.bound(bind, self.now)
        self.gpus: dict[NodeName, tuple[Gpu, ...]] = {}
        self.kubelets: list[Kubelet] = []
        self.agents: list[Agent] = []
        for number, count in enumerate(scene.gpus_per_node):
            self._add_node(NodeName("ab"[number]), count)
        self.arbiters = [Arbiter(self, f"arbiter {name}") for name in "xy"]
        self.scheduler = Scheduler(self)
        self.flow()

    def _add_node(self, name: NodeName, count: int) -> None:
        memories = podmaking.MEMORIES_MIB
        gpus = tuple(
            podmaking.build_gpu(name, index, memories[index % len(memories)])
            for index in range(count)
        )
        self.gpus[name] = gpus
        self.store.put(NODES, name, podmaking.build_node(name))
        self.store.put(GPU_NODES, name, Ledger(node=name, gpus=gpus, serving=False))
        kubelet = Kubelet(self, name)
        agent = Agent(self, name, gpus, kubelet)
        kubelet.plugin = agent
        self.kubelets.append(kubelet)
        self.agents.append(agent)

    @property
    def actors(self) -> tuple[Actor, ...]:
        """Everything that moves, simplest first."""
        return (self.scheduler, *self.arbiters, *self.agents, *self.kubelets, _Carrier(self.wire))

    def say(self, text: str, *about: object) -> None:
        self.trace.append((self.now, text, about))

    # --- time

    def flow(self, choice: int = 0, modes: int = 0) -> None:
        """Let each process do as its mode says, then those that may, until nothing is left to do.

        Args:
            choice: who is first, and which of several things is done first.
            modes: three bits for each: 0 to 3 hears and does everything, 4 and 5 nothing, 6 does
                one thing without having heard, 7 hears a part and does one thing.
        """
        actors = list(self.actors)
        first = choice % len(actors)
        free: list[Actor] = []
        for number in [*range(first, len(actors)), *range(first)]:
            actor, mode = actors[number], modes >> 3 * number & 7
            if mode < 4:
                free.append(actor)
            elif mode == 7:
                actor.hear_some(choice)
            if mode >= 6:
                actor.move(choice)
        self._run(free, choice)
        self.advance(STEP_SECONDS)

    def _run(self, free: Sequence[Actor], choice: int) -> None:
        for _ in range(MOST_MOVES):
            moved = False
            for actor in free:
                if actor.hear() | actor.move(choice):
                    self.moves += 1
                    moved = True
            if not moved:
                return
        raise ViolationError(5, "the processes never come to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass, and what can't be put off happen."""
        self.now += seconds
        self.wire.forced()
        for kubelet in self.kubelets:
            kubelet.forced()
        for agent in self.agents:
            agent.forced()

    # --- what the processes tell

    def _written(self, event: Event) -> None:
        self.accounts.written(event)
        if event.kind == GPU_NODES:
            truths.check_claims(event.stored.thing)

    def started(self) -> None:
        self.runs += 1
        for gpus in self.gpus.values():
            known = [each for uid, each in self.processes.items() if uid not in self.unheard]
            truths.check_processes(gpus, known)
        uid, process = next(reversed(self.processes.items()))
        pod = next(s.thing for s in self.store.all(PODS) + self._last_seen() if _is(s.thing, uid))
        if not self.accounts.of(process.node).strangers:
            truths.check_spread(pod, process)
        elif not truths.is_given_its_share(pod, process, self.gpus[process.node]):
            # Who is bound without an arbiter may be taken for another of its size.
            self.exceptions.append(Excuse.STRANGER)
            self.mistaken.add(uid)

    def _last_seen(self) -> list[Any]:
        return [event.stored for event in reversed(self.store.log) if event.kind == PODS]

    def refused(self, node: NodeName, pod: Json, reason: str, *, restarting: bool) -> None:
        exception = self.accounts.excuse(node, pod, reason, restarting=restarting)
        if exception is None:
            raise ViolationError(3, f"kubelet failed {pod['metadata']['name']}: {reason}")
        self.say("that is an exception: {}", exception)
        self.exceptions.append(exception)

    def plugin_went(self, node: NodeName, *, drained: bool) -> None:
        self.say("the plugin of {} has ended; drained: {}", node, drained)
        self.accounts.of(node).break_ = None if drained else Excuse.DRAIN_GIVEN_UP

    # --- what people do

    def send(self, bind: Bind, choice: int) -> None:
        """Send a Binding by way of one of the replicas; of one that is up, if there is one."""
        up = [arbiter for arbiter in self.arbiters if arbiter.is_up] or self.arbiters
        self.wire.bind(bind, up[choice % len(up)])

    def create(self, choice: int) -> None:
        """Create a pod; names come back."""
        taken = {stored.key for stored in self.store.all(PODS)}
        names = [name for name in map("p{}".format, range(MAX_PODS)) if name not in taken]
        if names:
            self._made += 1
            wanted = self.scene.palette[choice % len(self.scene.palette)]
            policy = Policy.SPREAD if choice & 64 else Policy.PACK
            name, uid = names[0], f"u{self._made}"
            self.say("{} ({}) is created, of share {}, {}", name, uid, wanted.share, policy)
            self.store.put(PODS, name, podmaking.build_pod(name, uid, wanted, policy))

    def mend(self) -> None:
        """Start what is dead, and end all faults but sickness."""
        self.wire.fate = Fate.ARRIVES
        mortals: list[Mortal] = [*self.arbiters, *self.kubelets, *self.agents]
        for process in mortals:
            if not process.is_up:
                process.start()

    # --- the end

    def settle(self) -> None:
        """Let everything come to rest, fairly: whatever waits for time gets it."""
        pauses = (0.1, 0.6, 2.0, 3.0, 5.0, 11.0, 16.0, 61.0, 61.0, 16.0)
        for _ in range(8):
            before = self.store.version
            for pause in pauses:
                self.mend()
                self.flow()
                self.advance(pause)
                self.flow()
            if self.store.version == before:
                return
        raise ViolationError(5, "the cluster never comes to rest")

    def check_quiet(self) -> None:
        """Check what holds when all is quiet."""
        for kubelet in self.kubelets:
            stored = self.store.get(GPU_NODES, kubelet.node)
            assert stored is not None
            here = {
                podmaking.uid_of(each.thing): each.thing
                for each in self.store.all(PODS)
                if pods.node_name(each.thing) == kubelet.node and not pods.has_ended(each.thing)
            }
            tokens = {uid: kubelet.tokens_of(uid) for uid in here}
            ledger: Ledger = stored.thing
            known = tuple(each for each in ledger.claims if each.pod.uid not in self.mistaken)
            here = {uid: pod for uid, pod in here.items() if uid not in self.mistaken}
            truths.check_quiet(dataclasses.replace(ledger, claims=known), here, tokens)
            if self.accounts.of(kubelet.node).strangers:
                continue  # one may run with less than it asks for, and the ledger counts all
            for each in self.store.all(PODS):
                if podmaking.waits(each.thing):
                    truths.check_waiting(each.thing, stored.thing, self.processes.values())

    def clear(self) -> None:
        """Delete every pod."""
        for stored in self.store.all(PODS):
            self.delete(stored.key, force=False)

    def delete(self, key: str, *, force: bool) -> None:
        """Delete a pod; one that is on no node, or by force, goes at once."""
        stored = self.store.get(PODS, key)
        assert stored is not None
        if force or pods.node_name(stored.thing) is None:
            self._note_unheard(stored.thing)
            self.store.delete(PODS, key)
        elif not podmaking.is_deleting(stored.thing):
            self.store.put(PODS, key, podmaking.deleting(stored.thing))

    def _note_unheard(self, pod: Json) -> None:
        uid, node = podmaking.uid_of(pod), pods.node_name(pod)
        stored = self.store.get(GPU_NODES, node) if node else None
        if node is None or stored is None or uid not in self.accounts.of(node).strangers:
            return
        claim = stored.thing.claim_of(uid)
        if claim is None or claim.state is ClaimState.RESERVED:
            self.exceptions.append(Excuse.STRANGER)
            self.unheard.add(uid)

    def set_cordon(self, node: NodeName, index: int, *, cordoned: bool) -> None:
        """Cordon a GPU, or no longer: an annotation of the `GpuNode`."""
        stored = self.store.get(GPU_NODES, node)
        assert stored is not None
        ledger: Ledger = stored.thing
        gpus = tuple(
            dataclasses.replace(gpu, cordoned=cordoned) if gpu.index == index else gpu
            for gpu in ledger.gpus
        )
        self.store.put(GPU_NODES, node, dataclasses.replace(ledger, gpus=gpus))


class _Carrier:
    """The wire as an actor: it has nothing to hear."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def hear(self) -> bool:
        return False

    def hear_some(self, choice: int) -> None:
        """Nothing to hear."""

    def move(self, choice: int) -> bool:
        return self._wire.move(choice)


def _is(pod: Json, uid: PodUid) -> bool:
    return podmaking.uid_of(pod) == uid
