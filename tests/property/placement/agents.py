# SPDX-License-Identifier: Apache-2.0
"""One node's agent and device plugin: the order of steps of `deviceplugin.agent` and `readback`,
around the real decisions, allocator and patience.
"""  # noqa: D205 - one sentence

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Protocol

from deviceplugin import publication
from deviceplugin.allocation import Refusal, knows_asker
from deviceplugin.allocator import Allocator
from deviceplugin.patience import Limits, Patience
from deviceplugin.reconciliation import Outcome, Sight, Verdict
from gpuslice.contract import pods
from gpuslice.contract.ledger import ClaimState, Gpu, Ledger, Part, PodRef
from gpuslice.contract.names import GpuUuid, NodeName, PodUid
from gpuslice.contract.placement import Demand
from gpuslice.contract.tokens import tokens_of_gpu
from tests.property.placement import podmaking
from tests.property.placement.apiserver import (
    GPU_NODES,
    NODES,
    PODS,
    Cache,
    ConflictError,
    Json,
    NoAnswerError,
    Store,
    Stored,
)
from tests.property.placement.decisions import Decisions
from tests.property.placement.errands import Errands
from tests.property.placement.kubelets import Kubelet
from tests.property.placement.watching import Watching
from tests.property.placement.wire import Wire

Ready = Callable[[], bool]

DRAIN_SECONDS: Final = 20.0
LAG_SECONDS: Final = 8.0
"""Its watch of pods is never further behind (`allocator.UNKNOWN_POD_SECONDS` is for that)."""
RETRY_SECONDS: Final = 0.1
RECONCILE_SECONDS: Final = 60.0


class World(Protocol):
    """What an agent needs of the world."""

    store: Store
    wire: Wire
    decisions: Decisions
    demands: tuple[Demand, ...]
    sick: set[GpuUuid]
    now: float

    def say(self, text: str, *about: object) -> None:
        """Note what happens."""

    def plugin_went(self, node: NodeName, *, drained: bool) -> None:
        """Learn that a plugin has ended as it was asked to."""


class Agent(Watching):
    """One process: the plugin half answers kubelet, the agent half keeps the ledger."""

    def __init__(
        self, world: World, node: NodeName, gpus: tuple[Gpu, ...], kubelet: Kubelet
    ) -> None:
        self._world = world
        self._node = node
        self._gpus = gpus
        self._kubelet = kubelet
        self.is_up = True
        self._begin()

    def _begin(self) -> None:
        store = self._world.store
        self.is_streaming = False
        self.is_draining = False
        self._drain_until = float("inf")
        self._drained = False
        self._ended: set[PodUid] = set()
        self._tokens = dict(self._kubelet.checkpoint)
        self._leaving: tuple[PodRef, ...] = ()
        self._released: frozenset[PodUid] = frozenset()
        self._errands = Errands(self._world, self._node, self._judge)
        decisions = self._world.decisions
        self._patience = Patience(Limits(pod_gone=decisions.pod_gone_seconds))
        self._allocator = Allocator(
            Ledger(node=self._node, gpus=(), serving=False),
            clock=lambda: self._world.now,
            look_again=self._look_again,
        )
        self._shown: tuple[Gpu, ...] = ()
        self._is_woken = True
        self._due = 0.0
        self.pods = Cache(
            store,
            PODS,
            wants=lambda pod: pods.node_name(pod) == self._node,
            on_put=self._note_end,
            on_end=self._wake,
        )
        self.ledgers = Cache(
            store,
            GPU_NODES,
            wants=lambda ledger: bool(ledger.node == self._node),
            on_put=self._wake,
        )
        self.nodes = Cache(
            store,
            NODES,
            wants=lambda node: bool(node["metadata"]["name"] == self._node),
            on_put=self._wake,
        )
        self.caches = (self.pods, self.ledgers, self.nodes)
        self._under_way: Callable[[], object] | None = None
        self._life = self._live()
        self._ready: Ready = lambda: True

    def _wake(self, _: object = None) -> None:
        self._is_woken = True

    def _note_end(self, stored: Stored) -> None:
        if pods.has_ended(stored.thing):
            self._ended.add(podmaking.uid_of(stored.thing))
        self._wake()

    # --- life

    def kill(self, *, lands: bool = False) -> None:
        """Die at once; what was under way to the API server arrives there late, or never."""
        if lands and self._under_way is not None:
            self._world.wire.post_late(self._under_way)
        self.is_up = self.is_streaming = False
        self._kubelet.stream_ended()

    def start(self) -> None:
        self.is_up = True
        self._begin()

    def drain(self) -> None:
        """End as SIGTERM asks: first nobody counts on us, then we go."""
        if self.is_up and not self.is_draining:
            self.is_draining = True
            self._drain_until = self._world.now + DRAIN_SECONDS
            self._wake()

    # --- the plugin half

    def stream_ended(self) -> None:
        self.is_streaming = False
        self._wake()

    def shown(self) -> frozenset[str]:
        return frozenset(
            each
            for gpu in self._shown
            if gpu.healthy
            for each in tokens_of_gpu(gpu.uuid, gpu.slices)
        )

    def prefer(self, available: Collection[str], size: int) -> tuple[str, ...]:
        if not knows_asker(self._allocator.view, size):
            self._look_again()
        return self._world.decisions.prefer(self._allocator.view, available, size)

    def allocate(self, ids: Sequence[str]) -> tuple[Part, ...] | str:
        answer = self._allocator.allocate(ids)
        return answer.message if isinstance(answer, Refusal) else answer.shape

    def _look_again(self) -> None:
        ledger = self._world.store.get(GPU_NODES, self._node)
        if ledger is not None:
            self.ledgers.put_back(ledger)
        for stored in self._world.store.all(PODS):
            if pods.node_name(stored.thing) == self._node:
                self.pods.put_back(stored)
        self._decide()

    # --- what moves

    def move(self, choice: int) -> bool:
        """Do one thing; return whether there was one to do."""
        if not self.is_up:
            return False
        dues = self._dues()
        if not dues:
            return False
        dues[choice % len(dues)]()
        return True

    def _dues(self) -> list[Callable[[], None]]:
        dues: list[Callable[[], None]] = [self._go_on] if self._ready() else []
        if self._shown and not self.is_streaming and self._kubelet.is_up and not self._is_over():
            dues.append(self._register)
        if self._tokens != self._kubelet.checkpoint:
            dues.append(self._look)
        asked = [pod for pod in self._leaving if pod.uid not in self._released]
        dues += [lambda pod=pod: self._ask(pod) for pod in asked if self._worth_asking(pod)]  # type: ignore[misc] # mypy can't see a lambda's default
        if self._errands:
            dues.append(self._errands.do_one)
        if self._is_over():
            dues.append(self._go)
        return dues

    def _is_over(self) -> bool:
        return self.is_draining and (self._drained or self._world.now >= self._drain_until)

    def _go(self) -> None:
        self._world.plugin_went(self._node, drained=self._drained)
        self.kill()

    def _register(self) -> None:
        self.is_streaming = True
        self._kubelet.stream_opened()
        self._wake()

    def _look(self) -> None:
        self._tokens = dict(self._kubelet.checkpoint)
        self._wake()

    def _worth_asking(self, pod: PodRef) -> bool:
        return self._kubelet.is_up and not self._kubelet.knows(pod.name)

    def _ask(self, pod: PodRef) -> None:
        self._tokens = dict(self._kubelet.checkpoint)  # looked at before each question
        self._released |= {pod.uid}
        self._wake()

    # --- the agent half

    def _go_on(self) -> None:
        self._ready = next(self._life)

    def _live(self) -> Iterator[Ready]:
        while True:
            self._is_woken = False
            try:
                yield from self._pass()
            except ConflictError:
                continue
            except NoAnswerError:
                self._due = self._world.now + RETRY_SECONDS
            yield lambda: self._is_woken or self._world.now >= self._due

    def _pass(self) -> Iterator[Ready]:
        now = self._world.now
        decided = self._decide()
        if decided is None:
            self._due = now + RETRY_SECONDS
            return
        stored, outcome = decided
        self._patience.observe(outcome.ledger, outcome.unseen, now)
        if stored.thing != outcome.ledger:
            write = self._writing(stored, outcome.ledger)
            yield from self._sending(write)
            stored = self._write(write, outcome)
        yield from self._publish(stored)
        self._follow_up(outcome)
        due = self._patience.next_due(self._world.now)
        # Time stands still while the processes move, so it must not be due at once again.
        self._due = self._world.now + max(1e-6, min(due, RECONCILE_SECONDS))

    def _decide(self) -> tuple[Stored, Outcome] | None:
        stored = self.ledgers.get(self._node)
        ledger = self._with_gpus(stored.thing if stored else None)
        self._shown = ledger.gpus
        if stored is None or not all(cache.is_ready for cache in self.caches):
            self._allocator.update(ledger, tokens=self._tokens, unclaimed=())
            return None
        serving = self.is_streaming and not self.is_draining
        ledger = ledger.with_serving(serving=serving)
        sight = self._sight(ledger)
        here = sight.pods.keys()
        outcome = self._world.decisions.reconcile(ledger, sight, podmaking.RESOURCE)
        self._allocator.update(
            outcome.ledger,
            tokens=outcome.tokens,
            unclaimed=outcome.unclaimed,
            unadopted=outcome.unadopted,
            bound=here,
            over=outcome.over,
        )
        return stored, outcome

    def _with_gpus(self, ledger: Ledger | None) -> Ledger:
        """Return the ledger with the GPUs as the driver says they are."""
        before = {gpu.uuid: gpu for gpu in ledger.gpus} if ledger else {}
        gpus = tuple(
            dataclasses.replace(
                gpu,
                healthy=gpu.uuid not in self._world.sick,
                cordoned=before[gpu.uuid].cordoned if gpu.uuid in before else False,
            )
            for gpu in self._gpus
        )
        if ledger is None:
            return Ledger(node=self._node, gpus=gpus, serving=False)
        return dataclasses.replace(ledger, gpus=gpus)

    def _sight(self, ledger: Ledger) -> Sight:
        here = {podmaking.uid_of(each.thing): each.thing for each in self.pods.all()}
        ended = frozenset(self._ended)
        done = ended | {uid for uid, pod in here.items() if pods.has_ended(pod)}
        return Sight(
            pods=here,
            tokens=self._tokens,
            released=self._world.decisions.released(self._released, done),
            ended=ended,
            verdicts=self._patience.verdicts(ledger),
            buried=self._patience.buried(self._world.now, serving=ledger.serving),
        )

    def _sending(self, request: Callable[[], Stored]) -> Iterator[Ready]:
        """Stop while a request is under way."""
        self._under_way = request
        yield lambda: True
        self._under_way = None

    def _writing(self, stored: Stored, ledger: Ledger) -> Callable[[], Stored]:
        store = self._world.store
        return lambda: store.put(GPU_NODES, self._node, ledger, expected=stored.version)

    def _write(self, write: Callable[[], Stored], outcome: Outcome) -> Stored:
        try:
            written = self._world.wire.call(write)
        except ConflictError:
            fresh = self._world.store.get(GPU_NODES, self._node)
            if fresh is not None:
                self.ledgers.put_back(fresh)
            raise
        for note in outcome.notes:
            self._world.say("agent: {} of {}: {}", note.repair, note.pod, note.message)
        self.ledgers.put_back(written)
        return written

    def _publish(self, stored: Stored) -> Iterator[Ready]:
        node = self.nodes.get(self._node)
        assert node is not None
        ledger: Ledger = stored.thing
        here: list[Json] = [each.thing for each in self.pods.all()]
        demands = publication.demands_of(self._world.demands, here, podmaking.RESOURCE)
        patch = publication.node_patch(
            node.thing,
            fits_wanted=self._world.decisions.fits(ledger, demands, here, podmaking.RESOURCE),
            labels_wanted={},
            ledger_version=str(stored.version),
        )
        if patch is not None:
            write = self._patching(patch)
            yield from self._sending(write)
            try:
                written = self._world.wire.call(write)
            except ConflictError:
                fresh = self._world.store.get(NODES, self._node)
                if fresh is not None:
                    self.nodes.put_back(fresh)
                raise
            self._world.say("agent: {} shows {}", self._node, patch)
            self.nodes.put_back(written)
        reserved = any(claim.state is ClaimState.RESERVED for claim in ledger.claims)
        if self.is_draining and not ledger.serving and not reserved:
            self._drained = True

    def _patching(self, patch: Json) -> Callable[[], Stored]:
        store = self._world.store
        return lambda: store.patch(NODES, self._node, patch)

    # --- what can wait

    def _follow_up(self, outcome: Outcome) -> None:
        if set(outcome.leaving) != set(self._leaving):
            uids = frozenset(pod.uid for pod in outcome.leaving)
            self._leaving, self._released = outcome.leaving, self._released & uids
        here = {podmaking.uid_of(each.thing) for each in self.pods.all()}
        self._ended &= here | {claim.pod.uid for claim in outcome.ledger.claims}
        self._errands.annotate(outcome.annotations)
        for pod in self._patience.to_look_for(outcome.unseen, self._world.now):
            self._errands.look_for(pod)

    def _judge(self, pod: PodRef, found: Verdict | None) -> None:
        ahead = self._world.decisions.expiry_ahead_seconds
        self._patience.judge(pod, found, self._world.now + ahead)
        self._wake()

    def forced(self) -> None:
        """Do what can't be put off: a stranger is kept in mind for 10 s only, unheard of."""
        if self.is_up and self.pods.hear_until(self._world.now - LAG_SECONDS):
            self._look()
            self._decide()

    def hardware_changed(self) -> None:
        """Hear of a GPU that turned sick, or recovered."""
        if self.is_up:
            self._decide()
            self._wake()
