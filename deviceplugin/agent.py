# SPDX-License-Identifier: Apache-2.0
"""The agent: one thread that keeps the ledger true, and the Node saying what follows from it.

Whatever happens wakes it. Each pass looks at everything, decides anew, and writes what differs:
so no event is too early or too late, and none must be remembered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from deviceplugin import inventory as inventories
from deviceplugin import publication, stock
from deviceplugin.allocator import Allocator
from deviceplugin.caches import Caches
from deviceplugin.devices import DeviceBoard, TooManyTokensError
from deviceplugin.errands import Errands
from deviceplugin.inventory import Inventory
from deviceplugin.patience import Limits, Patience
from deviceplugin.readback import Readback
from deviceplugin.reconciliation import Note, Outcome, Repair, Sight, reconcile
from deviceplugin.records import LOOK_SECONDS, Records, is_owned
from gpuslice.contract import gpunode, names, pods
from gpuslice.contract.ledger import ClaimState, Ledger, PodRef
from gpuslice.contract.names import GpuUuid, NodeName
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import Share
from gpuslice.contract.slices import SliceRule
from gpuslice.runtime import logs
from gpuslice.runtime.kube.errors import ConflictError, KubeError
from gpuslice.runtime.kube.resources import Json

log = logs.get(__name__)

FIRST_RETRY_SECONDS: Final = 0.1
LAST_RETRY_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the settings say."""

    resource: names.ResourceName
    slice_rule: SliceRule
    shares: tuple[Share, ...]
    """Those whose fits every node shows."""
    default_gpu_memory_mib: int
    mode: str
    limits: Limits
    reconcile_seconds: float


class Telling(Protocol):
    """Tells people, by whatever means."""

    def repaired(self, note: Note) -> None:
        """Tell of a repair."""

    def sells_whole_gpus(self, count: int) -> None:
        """Tell that another plugin sells this node's GPUs as a whole."""


class Agent:
    """One node's agent. The gRPC half works without it ever reaching the API server."""

    def __init__(
        self,
        node: NodeName,
        rules: Rules,
        *,
        records: Records,
        caches: Caches,
        allocator: Allocator,
        board: DeviceBoard,
        readback: Readback,
        errands: Errands,
        inventory: Callable[[], Inventory | None],
        forget_retired: Callable[[frozenset[GpuUuid]], None],
        clock: Callable[[], float],
        telling: Telling,
    ) -> None:
        """Be ready to start.

        Args:
            node: its name.
            rules: from the settings.
            records: writes.
            caches: watches; they and the others must call `wake` when something changes.
            allocator: is kept informed.
            board: shows the tokens, and knows whether kubelet listens.
            readback: knows who got which tokens.
            errands: does what can wait.
            inventory: what is known of the hardware, None before the first look.
            forget_retired: told which GPUs claims name, so that others that were reconfigured
                away can be forgotten.
            clock: seconds, monotonic.
            telling: told of what people should know.
        """
        self._node = node
        self._rules = rules
        self._records = records
        self._caches = caches
        self._allocator = allocator
        self._board = board
        self._readback = readback
        self._errands = errands
        self._inventory = inventory
        self._forget_retired = forget_retired
        self._clock = clock
        self._telling = telling
        self._patience = Patience(rules.limits)
        self._viewing = threading.RLock()
        self._woken = threading.Condition()
        self._is_woken = True
        self._stopping = False
        self._draining = False
        self._drained = threading.Event()
        self._annotated: dict[PodRef, dict[str, str]] = {}
        self._told: set[tuple[Repair, PodRef, str]] = set()
        self._whole_gpus = 0
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)

    # --- life

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Something changed."""
        with self._woken:
            self._is_woken = True
            self._woken.notify_all()

    def drain(self, timeout_seconds: float) -> bool:
        """Say that this plugin is going, and wait until no reservation counts on it.

        Returns:
            Whether that came true in time.
        """
        self._draining = True
        self.wake()
        return self._drained.wait(timeout_seconds)

    def stop(self) -> None:
        """End, at the latest when a call that is under way has ended."""
        with self._woken:
            self._stopping = True
            self._woken.notify_all()
        self._thread.join()

    @property
    def problem(self) -> str:
        """Why the ledger isn't kept at the moment; empty while it is."""
        return self._problem or self._caches.problem

    def _run(self) -> None:
        retry = FIRST_RETRY_SECONDS
        pause = 0.0
        while True:
            with self._woken:
                self._woken.wait_for(lambda: self._stopping or self._is_woken, pause)
                if self._stopping:
                    return
                self._is_woken = False
            try:
                pause = self._pass()
                retry, self._problem = FIRST_RETRY_SECONDS, ""
            except ConflictError:
                # Somebody else wrote first, and what was written is known now: decide again.
                pause = 0.0
            except KubeError as error:
                if str(error) != self._problem:
                    log.warning("ledger_not_kept", node=self._node, error=str(error))
                self._problem = str(error)
                pause, retry = retry, min(2 * retry, LAST_RETRY_SECONDS)
            except Exception as error:
                # The ledger has no other keeper: it must go on, and be loud.
                log.exception("agent_confused", node=self._node)
                self._problem = repr(error)
                pause, retry = retry, min(2 * retry, LAST_RETRY_SECONDS)

    # --- one pass

    def _pass(self) -> float:
        """Look, decide, write; return how long nothing more is to be done by itself."""
        now = self._clock()
        decided = self.decide()
        if decided is None:
            # Nobody tells of a watch that has begun with nothing.
            return FIRST_RETRY_SECONDS
        gpu_node, outcome = decided
        with self._viewing:
            self._patience.observe(outcome.ledger, outcome.unseen, now)
        written = self._write(gpu_node, outcome)
        if written is not None:
            self._publish(written)
        self._follow_up(outcome, now)
        with self._viewing:
            due = self._patience.next_due(self._clock())
        return min(self._rules.reconcile_seconds, due)

    def decide(self) -> tuple[Json | None, Outcome] | None:
        """Tell the allocator what is known now; return the ledger as it was read, and as it
        should be. None while the API server or the GPUs have not been looked at.
        """  # noqa: D205 - it does two things, and says so
        with self._viewing:
            gpu_node = self._caches.gpu_node
            inventory = stock.known(self._inventory(), gpu_node)
            if inventory is None:
                return None
            ledger = stock.ledger_of(self._node, inventory, self._rules.slice_rule, gpu_node)
            self._show(ledger)
            if not self._caches.are_ready:
                self._allocator.update(ledger, tokens=self._readback.tokens, unclaimed=())
                return None
            serving = self._board.streaming and not self._draining
            outcome = reconcile(
                ledger.with_serving(serving=serving), self._sight(), self._rules.resource
            )
            self._allocator.update(
                outcome.ledger, tokens=outcome.tokens, unclaimed=outcome.unclaimed
            )
            return gpu_node, outcome

    def _show(self, ledger: Ledger) -> None:
        try:
            self._board.show(ledger.gpus)
        except TooManyTokensError as error:
            log.exception("tokens_not_shown", node=self._node, error=str(error))

    def look_again(self) -> None:
        """Read the ledger and this node's pods afresh: kubelet asks for what isn't known."""
        try:
            gpu_node = self._records.read(LOOK_SECONDS)
            if gpu_node is not None:
                self._caches.gpu_nodes.put_back(gpu_node)
            for pod in self._records.pods_here():
                self._caches.pods.put_back(pod)
        except KubeError as error:
            log.warning("fresh_look_failed", node=self._node, error=str(error))
        self.decide()

    def _sight(self) -> Sight:
        return Sight(
            pods=self._caches.pods_by_uid(),
            tokens=self._readback.tokens,
            released=self._readback.released,
            ended=self._caches.ended(),
            verdicts=self._patience.verdicts(),
            buried=self._patience.buried(self._clock()),
        )

    def _write(self, gpu_node: Json | None, outcome: Outcome) -> Json | None:
        """Write the inventory and the claims where they differ; return the object as it is."""
        node = self._caches.node
        if node is None:
            return None
        inventory = stock.known(self._inventory(), gpu_node)
        assert inventory is not None
        spec = inventories.spec_of(inventory, self._rules.slice_rule, mode=self._rules.mode)
        try:
            if gpu_node is None:
                gpu_node = self._kept(self._records.create(spec, node))
            elif gpu_node.get("spec") != spec or not is_owned(gpu_node, node):
                gpu_node = self._kept(self._records.write_spec(gpu_node, spec, node))
            if gpu_node.get("status") != gpunode.status_of(outcome.ledger):
                gpu_node = self._kept(self._records.write_status(gpu_node, outcome.ledger))
        except ConflictError:
            fresh = self._records.read()
            if fresh is not None:
                self._kept(fresh)
            raise
        self._report(outcome)
        return gpu_node

    def _kept(self, gpu_node: Json) -> Json:
        self._caches.gpu_nodes.put_back(gpu_node)
        return gpu_node

    def _report(self, outcome: Outcome) -> None:
        """Tell of each repair once, after it is written."""
        notes = {(note.repair, note.pod, note.message): note for note in outcome.notes}
        for key, note in notes.items():
            if key not in self._told:
                log.warning(
                    "ledger_repaired",
                    repair=note.repair.value,
                    namespace=note.pod.namespace,
                    pod=note.pod.name,
                    message=note.message,
                )
                self._telling.repaired(note)
        # What could not be put right comes up in every pass.
        self._told = {key for key in notes if key[0] is Repair.OVERLAP}

    def _publish(self, gpu_node: Json) -> None:
        """Make the Node say what follows from the ledger as it was written, and from which."""
        node = self._caches.node
        if node is None:
            return
        ledger = gpunode.ledger_of(gpu_node)
        bound = list(self._caches.pods_by_uid().values())
        demands = publication.demands_of(
            [*self._standing(ledger), *self._caches.demands()], bound, self._rules.resource
        )
        patch = publication.node_patch(
            node,
            fits_wanted=publication.values(ledger, demands, bound, self._rules.resource),
            labels_wanted=publication.labels(ledger, self._rules.mode),
            ledger_version=pods.meta_of(gpu_node)["resourceVersion"],
        )
        if patch is not None:
            self._caches.nodes.put_back(self._records.patch_node(patch))
        reserved = any(claim.state is ClaimState.RESERVED for claim in ledger.claims)
        if self._draining and not ledger.serving and not reserved:
            self._drained.set()
        self._mind_whole_gpus(node)

    def _standing(self, ledger: Ledger) -> list[Demand]:
        kinds = sorted({gpu.memory_mib for gpu in ledger.gpus}) or [
            self._rules.default_gpu_memory_mib
        ]
        rule = self._rules.slice_rule
        return [
            Demand(share=share, slices=rule.slices_of_share(share, kinds))
            for share in self._rules.shares
        ]

    def _mind_whole_gpus(self, node: Json) -> None:
        count = publication.whole_gpus_sold(node)
        if count != self._whole_gpus:
            self._whole_gpus = count
            log.warning("whole_gpus_sold_beside", node=self._node, count=count)
            self._telling.sells_whole_gpus(count)

    # --- what can wait

    def _follow_up(self, outcome: Outcome, now: float) -> None:
        self._readback.ask(outcome.leaving)
        self._forget_retired(
            frozenset(uuid for each in outcome.ledger.claims for uuid in each.gpus)
        )
        known = {claim.pod.uid for claim in outcome.ledger.claims}
        self._caches.forget_ended(frozenset(known) | frozenset(self._caches.pods_by_uid()))
        with self._viewing:
            # The watch lags behind: what was sent once need not be sent in each pass.
            sent = {pod: self._annotated.get(pod) for pod in outcome.annotations}
            self._annotated = {pod: dict(each) for pod, each in outcome.annotations.items()}
            due = self._patience.to_look_for(outcome.unseen, now)
        for pod, wanted in outcome.annotations.items():
            if sent[pod] != wanted:
                self._errands.send(("annotate", pod), self._annotating(pod, dict(wanted)))
        for pod in due:
            self._errands.send(("look for", pod), self._looking_for(pod))

    def _annotating(self, pod: PodRef, wanted: dict[str, str]) -> Callable[[], None]:
        def annotate() -> None:
            try:
                self._records.annotate(pod, wanted)
            except KubeError:
                # The next pass finds it undone.
                with self._viewing:
                    self._annotated.pop(pod, None)
                raise

        return annotate

    def _looking_for(self, pod: PodRef) -> Callable[[], None]:
        def look() -> None:
            found = self._records.whereabouts(pod)
            with self._viewing:
                self._patience.judge(pod, found, self._clock())
            self.wake()

        return look
