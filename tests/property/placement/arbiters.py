# SPDX-License-Identifier: Apache-2.0
"""One replica of the arbiter: the order of steps of `webhook.arbiter`, around its real decision.

Each bind is a coroutine that stops wherever the product waits or calls: so replicas race, and die
between any two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final, Protocol

from gpuslice.contract import gpunode, names, pods
from gpuslice.contract.ledger import Claim, Ledger
from gpuslice.contract.names import NodeName, PodUid, ResourceName
from tests.property.placement import podmaking
from tests.property.placement.apiserver import (
    GPU_NODES,
    NODES,
    PODS,
    Cache,
    ConflictError,
    NoAnswerError,
    Store,
    Stored,
)
from tests.property.placement.decisions import Decisions
from tests.property.placement.watching import Watching
from tests.property.placement.wire import Bind, Wire
from webhook import arbitration, sharingpods
from webhook.arbitration import AlreadyClaimed, Decision, Deny, Grant, Wait
from webhook.sharingpods import SharingPod

Ready = Callable[[], bool]

ROOM_SECONDS: Final = 0.5
NODE_SECONDS: Final = 2.0
TOTAL_SECONDS: Final = 2.7
HOLD_SECONDS: Final = 0.05
MAX_SWAPS: Final = 16


def at_once() -> bool:
    """Be ready: only others may act in between."""
    return True


class NodeView:
    """What a Node shows: its ledger's version, its fits, and when each last rose."""

    def __init__(self, before: NodeView | None, node: Stored, now: float) -> None:
        thing = node.thing
        text = pods.annotations_of(thing).get(names.LEDGER_ANNOTATION, "0")
        allocatable = thing["status"]["allocatable"]
        self.version = int(text)
        self.fits = {
            ResourceName(resource): int(value)
            for resource, value in allocatable.items()
            if resource.startswith(names.FIT_PREFIX)
        }
        self.rises: dict[ResourceName, float] = dict(before.rises) if before else {}
        for resource, value in self.fits.items():
            if value > (before.fits.get(resource, 0) if before else 0):
                self.rises[resource] = now


class World(Protocol):
    """What a replica needs of the world."""

    store: Store
    wire: Wire
    decisions: Decisions
    now: float

    def say(self, text: str, *about: object) -> None:
        """Note what happens."""


class Arbiter(Watching):
    """One process."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self.is_up = True
        self._begin()

    def _begin(self) -> None:
        store = self._world.store
        self._binds: list[tuple[Iterator[Ready], Ready]] = []
        self._under_way: list[Callable[[], Stored]] = []
        self._views: dict[str, NodeView] = {}
        self._sharing: dict[PodUid, SharingPod] = {}
        self.ledgers = Cache(store, GPU_NODES)
        self.nodes = Cache(store, NODES, on_put=self._note_node)
        self.pods = Cache(store, PODS, on_put=self._note_pod, on_end=self._note_end)
        self.caches = (self.ledgers, self.nodes, self.pods)
        for cache in self.caches:
            cache.list()

    def _note_node(self, node: Stored) -> None:
        before = self._views.get(node.key)
        self._views[node.key] = NodeView(before, node, self._world.now)

    def _note_pod(self, pod: Stored) -> None:
        self._sharing[podmaking.uid_of(pod.thing)] = sharingpods.read(pod.thing, podmaking.RESOURCE)

    def _note_end(self, pod: Stored) -> None:
        self._sharing.pop(podmaking.uid_of(pod.thing), None)

    # --- life

    def kill(self, *, lands: bool = False) -> None:
        """Die at once; what was under way to the API server arrives there late, or never."""
        for request in self._under_way if lands else ():
            self._world.wire.post_late(request)
        self.is_up = False
        self._binds = []

    def start(self) -> None:
        self.is_up = True
        self._begin()

    def ask(self, bind: Bind) -> None:
        self._binds.append((self._bind(bind), at_once))

    def move(self, choice: int) -> bool:
        """Take one bind one step further; return whether one was ready."""
        ready = [number for number, (_, is_ready) in enumerate(self._binds) if is_ready()]
        if not self.is_up or not ready:
            return False
        number = ready[choice % len(ready)]
        steps, _ = self._binds.pop(number)
        following = next(steps, None)
        if following is not None:
            self._binds.insert(number, (steps, following))
        return True

    # --- one bind

    def _bind(self, bind: Bind) -> Iterator[Ready]:
        pod = self._sharing.get(bind.uid) if bind.uid else None
        if pod is None:
            yield at_once
            found = self._world.store.get(PODS, bind.key)
            if found is not None and bind.uid in (None, podmaking.uid_of(found.thing)):
                pod = sharingpods.read(found.thing, podmaking.RESOURCE)
        if pod is None or pod.node not in (None, bind.node):
            self._answer(bind, None, "there is no such pod, or it is bound")
            return
        try:
            yield from self._decided(bind, pod)
        except NoAnswerError:
            self._answer(bind, None, "the API server gives no answer")

    def _decided(self, bind: Bind, pod: SharingPod) -> Iterator[Ready]:
        until = bind.began + TOTAL_SECONDS
        room_until = bind.began + ROOM_SECONDS
        swaps = 0
        while True:
            snapshot = self.ledgers.get(bind.node)
            assert snapshot is not None
            decision = self._arbitrate(snapshot, pod, bind.node)
            if isinstance(decision, Grant):
                written = yield from self._swap(snapshot, decision.ledger)
                if written is not None:
                    self._say("{} reserves {}", pod.pod, decision.claim.gpus)
                    yield from self._shown(
                        bind, pod, decision.claim, written, until, own=decision.claim.binds == 1
                    )
                    return
                swaps += 1
                yield at_once
                if swaps == MAX_SWAPS:
                    self._answer(bind, None, "contended")
                    return
                self._refresh(bind.node)
                continue
            if isinstance(decision, AlreadyClaimed):
                version = snapshot.version
                yield from self._shown(bind, pod, decision.claim, version, until, own=False)
                return
            if isinstance(decision, Wait) and self._world.now < room_until:
                yield self._changed_or_late(bind.node, snapshot.version, room_until)
                now = self.ledgers.get(bind.node)
                if now is not None and now.version != snapshot.version:
                    continue
            denial = decision.denial if isinstance(decision, Wait) else decision
            assert isinstance(denial, Deny)
            self._answer(bind, None, denial.message)
            return

    def _arbitrate(self, snapshot: Stored, pod: SharingPod, node: NodeName) -> Decision:
        ledger: Ledger = snapshot.thing
        assert pod.placement is not None
        return arbitration.arbitrate(
            ledger,
            pod.ask,
            node=node,
            pod=pod.pod,
            policy=pod.placement,
            departing=frozenset(
                claim.pod.uid for claim in ledger.claims if self._departs(claim.pod.uid)
            ),
            others=(),  # only for the words of a denial
        )

    def _departs(self, uid: PodUid) -> bool:
        found = self._sharing.get(uid)
        return found is None or found.is_leaving

    def _swap(self, snapshot: Stored, ledger: Ledger) -> Generator[Ready, None, int | None]:
        """Write a ledger; return its version, None where another has written in between."""
        expected = snapshot.version if self._world.decisions.compares_versions else None

        def write() -> Stored:
            return self._world.store.put(GPU_NODES, snapshot.key, ledger, expected=expected)

        self._under_way.append(write)
        yield at_once
        self._under_way.remove(write)
        try:
            stored = self._world.wire.call(write)
        except ConflictError:
            return None
        self.ledgers.put_back(stored)
        return stored.version

    def _refresh(self, node: NodeName) -> None:
        found = self._world.store.get(GPU_NODES, node)
        if found is not None:
            self.ledgers.put_back(found)

    def _changed_or_late(self, node: NodeName, version: int, until: float) -> Ready:
        def is_ready() -> bool:
            snapshot = self.ledgers.get(node)
            changed = snapshot is not None and snapshot.version != version
            return changed or self._world.now >= until

        return is_ready

    def _shown(
        self,
        bind: Bind,
        pod: SharingPod,
        claim: Claim,
        version: int,
        until: float,
        *,
        own: bool,
    ) -> Iterator[Ready]:
        """Wait until the Node shows the claim, and kubelet has seen it."""
        assert pod.ask is not None
        fit = pod.ask.fit.fit_resource
        until = min(until, self._world.now + NODE_SECONDS)

        def is_shown() -> bool:
            view = self._views.get(bind.node)
            return view is not None and view.version >= version and view.fits.get(fit, 0) >= 1

        def is_held() -> bool:
            view = self._views[bind.node]
            return is_shown() and self._world.now >= view.rises.get(fit, 0.0) + HOLD_SECONDS

        if self._world.decisions.waits_for_node:
            yield lambda: is_held() or self._world.now >= until
            if not is_held():
                self._say("{} was not shown in time", pod.pod)
                if own:
                    yield from self._take_back(bind.node, claim)
                self._answer(bind, None, "not shown")
                return
        self._answer(bind, claim, "")

    def _take_back(self, node: NodeName, claim: Claim) -> Iterator[Ready]:
        for _ in range(MAX_SWAPS):
            snapshot = self.ledgers.get(node)
            if snapshot is None or snapshot.thing.claim_of(claim.pod.uid) != claim:
                return  # gone, or granted to a later bind
            without = snapshot.thing.without([claim.pod.uid])
            if (yield from self._swap(snapshot, without)) is not None:
                return
            self._refresh(node)

    def _answer(self, bind: Bind, claim: Claim | None, reason: str) -> None:
        if bind.judged:
            return  # nobody waits any more
        bind.judged, bind.denied = True, claim is None
        if claim is not None:
            bind.annotations = gpunode.pod_annotations(claim)
            bind.uid = claim.pod.uid
            self._say("{} may go to {}", bind.key, claim.gpus)
        else:
            self._say("{} is denied: {}", bind.key, reason)

    def _say(self, text: str, *about: object) -> None:
        self._world.say(self._name + ": " + text, *about)
