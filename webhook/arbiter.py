# SPDX-License-Identifier: Apache-2.0
"""The arbiter: answers the binds of sharing pods.

At most one read of the pod and, unless others write the same ledger at that moment, one write.
Any number of replicas do this at once: each decision is made against the object that it swaps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpuslice.contract import gpunode, names
from gpuslice.contract.ledger import Claim, Ledger
from gpuslice.contract.placement import Policy
from gpuslice.contract.pods import Ask
from webhook import arbitration
from webhook.arbitration import Decision, Deny, Grant, Pass, Wait
from webhook.sharingpods import SharingPod

MAX_SWAPS: Final = 16
"""Attempts to write one ledger; each lost one means that another claim was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One node's ledger, and the version that a change of it must be written against."""

    ledger: Ledger
    version: int
    """The `GpuNode`'s resourceVersion."""


class SwapLostError(Exception):
    """The ledger changed in between: read again and decide again."""


class UnreachableError(Exception):
    """The API server gave no usable answer."""


class Ledgers(Protocol):
    """The ledgers of all nodes, and the writing of one."""

    def snapshot(self, node: names.NodeName) -> Snapshot | None:
        """Return the newest known ledger of a node, None where it has no GPUs of ours."""

    def all(self) -> Iterable[Ledger]:
        """Return all ledgers."""

    def refresh(self, node: names.NodeName) -> None:
        """Read a node's ledger anew. Raises UnreachableError."""

    def swap(self, snapshot: Snapshot, ledger: Ledger) -> int:
        """Write a ledger; return its version. Raises SwapLostError, UnreachableError."""

    def wait_for_change(self, node: names.NodeName, version: int, timeout_seconds: float) -> bool:
        """Return whether a node's ledger became another than `version` in time."""


class Pods(Protocol):
    """The pods that are bound."""

    def known(self, binding: Binding) -> SharingPod | None:
        """Return the pod if it is a sharing pod that is known without asking anybody."""

    def read(self, binding: Binding) -> SharingPod | None:
        """Return the pod, None where there is none (any more). Raises UnreachableError."""

    def departing(self, uids: Collection[names.PodUid]) -> frozenset[names.PodUid]:
        """Return which of these pods are gone or going."""


class Nodes(Protocol):
    """What the nodes show of their ledgers."""

    def wait_until_shown(
        self, node: names.NodeName, version: int, resource: str, timeout_seconds: float
    ) -> bool:
        """Return whether in time a node showed a ledger of that version or a later one.

        And that a while after the last rise of `resource`, so that kubelet has seen it too.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One bind, as a scheduler asks for it."""

    namespace: str
    name: str
    """Of the pod."""
    uid: names.PodUid | None
    """Of the pod, None where the binder doesn't say: people don't."""
    node: names.NodeName
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a bind."""

    denial: Deny | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    """For the pod, where the bind is allowed."""
    pod_uid: names.PodUid | None = None
    """Of the sharing pod that is allowed: the bind holds for this one only, not for another that
    was made under its name meanwhile."""
    outcome: str
    """For metrics: ``passed``, ``granted``, ``granted-again`` or ``denied``."""
    waited_for_room_seconds: float = 0.0
    waited_for_node_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a bind may take."""

    room_seconds: float = 0.5
    """Before a denial, for a ledger that is about to change."""
    node_seconds: float = 2.0
    """For the Node to show the claim."""
    total_seconds: float = 2.7
    """All together: less than the API server waits for us (3 s)."""
    waiters: int = 16
    """How many may wait for room at once; more are denied at once."""
    binds: int = 96
    """Of sharing pods, answered at once: they must never hold up admission."""


class _Deadlines:
    def __init__(self, clock: Callable[[], float], patience: Patience) -> None:
        self._clock = clock
        self.began = clock()
        self.room_until = self.began + patience.room_seconds
        self.until = self.began + patience.total_seconds

    def now(self) -> float:
        return self._clock()


class Arbiter:
    """Answers binds; any number of threads may ask at once."""

    def __init__(
        self,
        *,
        ledgers: Ledgers,
        pods_source: Pods,
        nodes: Nodes,
        policy: Policy,
        patience: Patience,
        clock: Callable[[], float],
    ) -> None:
        """Keep what binds are decided with.

        Args:
            ledgers: of all nodes.
            pods_source: where pods are looked up.
            nodes: what the nodes show.
            policy: for pods that name none.
            patience: how long a bind may take.
            clock: monotonic seconds.
        """
        self._ledgers = ledgers
        self._pods = pods_source
        self._nodes = nodes
        self._policy = policy
        self._patience = patience
        self._clock = clock
        self._waiters = threading.BoundedSemaphore(patience.waiters)
        self._binds = threading.BoundedSemaphore(patience.binds)
        self._locks: dict[names.NodeName, threading.Lock] = {}
        self._locks_guard = threading.Lock()

    def bind(self, binding: Binding) -> Verdict:
        """Decide about a bind, and write the claim where it is granted."""
        deadlines = _Deadlines(self._clock, self._patience)
        if self._ledgers.snapshot(binding.node) is None:
            # The way of every pod without GPUs: two look-ups, nothing is asked.
            pod = self._pods.known(binding)
            if pod is None or pod.ask is None:
                return Verdict(outcome="passed")
            return self._decided(binding, pod, deadlines)
        if not self._binds.acquire(blocking=False):
            message = f"{self._patience.binds} binds are being answered already: try again"
            return _denied(Deny(reason="busy", message=message))
        try:
            pod = self._pods.known(binding) or self._pods.read(binding)
            if pod is None:
                message = f"there is no pod {binding.namespace}/{binding.name} of that uid any more"
                return _denied(Deny(reason="pod-gone", message=message))
            return self._decided(binding, pod, deadlines)
        except UnreachableError as error:
            # Nothing is bound without its claim, whatever the failure policy says.
            return _denied(Deny(reason="unreachable", message=f"try again: {error}", code=503))
        finally:
            self._binds.release()

    def _decided(self, binding: Binding, pod: SharingPod, deadlines: _Deadlines) -> Verdict:
        ask = pod.ask
        if ask is None:
            if pod.asks_slices:
                message = (
                    "the pod asks for slices of a GPU and was not admitted by gpuslice: "
                    "create it again while the webhook is there"
                )
                return _denied(Deny(reason="not-admitted", message=message))
            return Verdict(outcome="passed")
        if pod.node not in (None, binding.node):
            message = f"the pod is bound to node {pod.node} already"
            return _denied(Deny(reason="bound", message=message))
        if pod.is_leaving:
            message = f"pod {pod.pod} has ended or is being deleted"
            return _denied(Deny(reason="pod-gone", message=message))
        for _ in range(MAX_SWAPS):
            try:
                decision, version = self._claimed(binding, pod, ask, deadlines)
            except SwapLostError:
                self._ledgers.refresh(binding.node)
                continue
            return self._answer(binding, ask, decision, version, deadlines)
        message = f"the ledger of node {binding.node} changed {MAX_SWAPS} times meanwhile"
        return _denied(Deny(reason="contended", message=message))

    def _claimed(
        self, binding: Binding, pod: SharingPod, ask: Ask, deadlines: _Deadlines
    ) -> tuple[Decision, int]:
        """Decide, wait where that helps, and write a grant; return the ledger's version too."""
        while True:
            with self._lock(binding.node):
                snapshot = self._ledgers.snapshot(binding.node)
                decision = self._arbitrate(binding, pod, ask, snapshot)
                if isinstance(decision, Grant) and snapshot is not None:
                    if binding.dry_run:
                        return decision, 0
                    return decision, self._ledgers.swap(snapshot, decision.ledger)
            version = 0 if snapshot is None else snapshot.version
            if not isinstance(decision, Wait):
                return decision, version
            left = deadlines.room_until - deadlines.now()
            if binding.dry_run or not self._room_may_come(binding.node, version, left):
                return decision.denial, version

    def _room_may_come(self, node: names.NodeName, version: int, seconds: float) -> bool:
        """Wait for a node's ledger to change; return whether it has."""
        if seconds <= 0 or not self._waiters.acquire(blocking=False):
            return False
        try:
            return self._ledgers.wait_for_change(node, version, seconds)
        finally:
            self._waiters.release()

    def _arbitrate(
        self, binding: Binding, pod: SharingPod, ask: Ask, snapshot: Snapshot | None
    ) -> Decision:
        ledger = None if snapshot is None else snapshot.ledger
        claims = () if ledger is None else ledger.claims
        return arbitration.arbitrate(
            ledger,
            ask,
            node=binding.node,
            pod=pod.pod,
            policy=pod.placement or self._policy,
            departing=self._pods.departing([claim.pod.uid for claim in claims]),
            others=self._ledgers.all(),
        )

    def _answer(
        self,
        binding: Binding,
        ask: Ask,
        decision: Decision,
        version: int,
        deadlines: _Deadlines,
    ) -> Verdict:
        if isinstance(decision, Wait):
            decision = decision.denial
        if isinstance(decision, Deny):
            return _denied(decision, deadlines.now() - deadlines.began)
        if isinstance(decision, Pass):
            return Verdict(outcome="passed")
        claim = decision.claim
        is_first = isinstance(decision, Grant) and claim.binds == 1
        decided = deadlines.now()
        if not binding.dry_run and not self._shown(binding, ask, version, deadlines):
            if is_first:
                self._take_back(binding.node, claim)
            message = f"node {binding.node} didn't show the pod's claim in time: try again"
            return _denied(Deny(reason="not-shown", message=message))
        return Verdict(
            outcome="granted" if is_first else "granted-again",
            annotations=gpunode.pod_annotations(claim),
            pod_uid=claim.pod.uid,
            waited_for_room_seconds=decided - deadlines.began,
            waited_for_node_seconds=deadlines.now() - decided,
        )

    def _shown(self, binding: Binding, ask: Ask, version: int, deadlines: _Deadlines) -> bool:
        left = min(self._patience.node_seconds, deadlines.until - deadlines.now())
        return self._nodes.wait_until_shown(
            binding.node, version, ask.fit.fit_resource, max(0.0, left)
        )

    def _take_back(self, node: names.NodeName, claim: Claim) -> None:
        """Drop the claim that this very bind made, unless another bind was granted it since."""
        for _ in range(MAX_SWAPS):
            with self._lock(node):
                snapshot = self._ledgers.snapshot(node)
                if snapshot is None or snapshot.ledger.claim_of(claim.pod.uid) != claim:
                    return
                try:
                    self._ledgers.swap(snapshot, snapshot.ledger.without([claim.pod.uid]))
                except SwapLostError:
                    self._ledgers.refresh(node)
                    continue
                return

    def _lock(self, node: names.NodeName) -> threading.Lock:
        """Return a node's lock: two binds of one replica needn't lose swaps to each other."""
        with self._locks_guard:
            return self._locks.setdefault(node, threading.Lock())


def _denied(denial: Deny, waited_seconds: float = 0.0) -> Verdict:
    return Verdict(denial=denial, outcome="denied", waited_for_room_seconds=waited_seconds)
