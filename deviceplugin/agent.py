# SPDX-License-Identifier: Apache-2.0
"""The agent: one thread that keeps the ledger true, and the Node saying what follows from it.

Whatever happens wakes it. Each pass looks at everything, decides anew, and writes what differs:
so no event is too early or too late, and none must be remembered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

from deviceplugin import inventory as inventories
from deviceplugin.caches import Caches
from deviceplugin.errands import Errands
from deviceplugin.judgement import Decision, Judge
from deviceplugin.publisher import Publisher
from deviceplugin.readback import Readback
from deviceplugin.reconciliation import Note, Outcome, Repair
from deviceplugin.records import Records, is_owned
from deviceplugin.rules import Rules
from gpuslice.contract import gpunode
from gpuslice.contract.ledger import ClaimState, PodRef
from gpuslice.contract.names import GpuUuid
from gpuslice.runtime import logs
from gpuslice.runtime.kube.errors import ConflictError, KubeError
from gpuslice.runtime.kube.resources import Json

log = logs.get(__name__)

FIRST_RETRY_SECONDS: Final = 0.1
LAST_RETRY_SECONDS: Final = 5.0


class Telling(Protocol):
    """Tells people of repairs."""

    def repaired(self, note: Note) -> None:
        """Tell of one."""


class Agent:
    """One node's agent. The gRPC half works without it ever reaching the API server."""

    def __init__(
        self,
        rules: Rules,
        *,
        judge: Judge,
        publisher: Publisher,
        records: Records,
        caches: Caches,
        readback: Readback,
        errands: Errands,
        forget_retired: Callable[[frozenset[GpuUuid]], None],
        clock: Callable[[], float],
        telling: Telling,
    ) -> None:
        """Be ready to start.

        Args:
            rules: from the settings.
            judge: decides; what it looks at must call `wake` when it changes.
            publisher: makes the Node say what follows.
            records: writes.
            caches: are told what was written.
            readback: is told whom to ask kubelet about.
            errands: does what can wait.
            forget_retired: told which GPUs claims name, so that others that were reconfigured
                away can be forgotten.
            clock: seconds, monotonic.
            telling: told of repairs.
        """
        self._rules = rules
        self._judge = judge
        self._publisher = publisher
        self._records = records
        self._caches = caches
        self._readback = readback
        self._errands = errands
        self._forget_retired = forget_retired
        self._clock = clock
        self._telling = telling
        self._woken = threading.Condition()
        self._is_woken = True
        self._stopping = False
        self._drained = threading.Event()
        self._annotated: dict[PodRef, dict[str, str]] = {}
        self._told: set[tuple[Repair, PodRef, str]] = set()
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)

    def use(self, rules: Rules) -> None:
        """Go by other rules from the next pass on."""
        self._rules = rules
        self._judge.use(rules)
        self._publisher.use(rules)
        self.wake()

    # --- life

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

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
        self._judge.is_draining = True
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
        retry, pause = FIRST_RETRY_SECONDS, 0.0
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
                    log.warning("ledger_not_kept", error=str(error))
                self._problem = str(error)
                pause, retry = retry, min(2 * retry, LAST_RETRY_SECONDS)
            except Exception as error:
                # The ledger has no other keeper: it must go on, and be loud.
                log.exception("agent_confused")
                self._problem = repr(error)
                pause, retry = retry, min(2 * retry, LAST_RETRY_SECONDS)

    # --- one pass

    def _pass(self) -> float:
        """Look, decide, write; return how long nothing more is to be done by itself."""
        now = self._clock()
        decision = self._judge.decide()
        if decision is None:
            # Nobody tells of a watch that has begun with nothing.
            return FIRST_RETRY_SECONDS
        outcome = decision.outcome
        with self._judge.lock:
            self._judge.patience.observe(outcome.ledger, outcome.unseen, now)
        written = self._write(decision)
        if written is not None:
            self._report(outcome)
            self._publisher.publish(written)
            self._mind_drain(written)
        self._follow_up(outcome, now)
        with self._judge.lock:
            due = self._judge.patience.next_due(self._clock())
        return min(self._rules.reconcile_seconds, due)

    def _write(self, decision: Decision) -> Json | None:
        """Write the inventory and the claims where they differ; return the object as it is."""
        node, gpu_node = self._caches.node, decision.gpu_node
        if node is None:
            return None
        spec = inventories.spec_of(
            decision.inventory, self._rules.slice_rule, mode=self._rules.mode
        )
        ledger = decision.outcome.ledger
        try:
            if gpu_node is None:
                gpu_node = self._kept(self._records.create(spec, node))
            elif gpu_node.get("spec") != spec or not is_owned(gpu_node, node):
                gpu_node = self._kept(self._records.write_spec(gpu_node, spec, node))
            if gpu_node.get("status") != gpunode.status_of(ledger):
                gpu_node = self._kept(self._records.write_status(gpu_node, ledger))
        except ConflictError:
            fresh = self._records.read()
            if fresh is not None:
                self._kept(fresh)
            raise
        return gpu_node

    def _kept(self, gpu_node: Json) -> Json:
        self._caches.gpu_nodes.put_back(gpu_node)
        return gpu_node

    def _report(self, outcome: Outcome) -> None:
        """Tell of each repair once, after it is written."""
        notes = {(note.repair, note.pod, note.message): note for note in outcome.notes}
        for key, note in notes.items():
            if key not in self._told:
                log.info(
                    "ledger_repaired",
                    repair=note.repair.value,
                    namespace=note.pod.namespace,
                    pod=note.pod.name,
                    message=note.message,
                )
                self._telling.repaired(note)
        # What could not be put right comes up in every pass.
        self._told = {key for key in notes if key[0] is Repair.OVERLAP}

    def _mind_drain(self, gpu_node: Json) -> None:
        ledger = gpunode.ledger_of(gpu_node)
        reserved = any(claim.state is ClaimState.RESERVED for claim in ledger.claims)
        if self._judge.is_draining and not ledger.serving and not reserved:
            self._drained.set()

    # --- what can wait

    def _follow_up(self, outcome: Outcome, now: float) -> None:
        self._readback.ask(outcome.leaving)
        claims = outcome.ledger.claims
        self._forget_retired(frozenset(uuid for claim in claims for uuid in claim.gpus))
        here = frozenset(self._caches.pods_by_uid())
        self._caches.forget_ended(here.union(claim.pod.uid for claim in claims))
        with self._judge.lock:
            # The watch lags behind: what was sent once need not be sent in each pass.
            sent = {pod: self._annotated.get(pod) for pod in outcome.annotations}
            self._annotated = {pod: dict(each) for pod, each in outcome.annotations.items()}
            due = self._judge.patience.to_look_for(outcome.unseen, now)
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
                with self._judge.lock:
                    self._annotated.pop(pod, None)
                raise

        return annotate

    def _looking_for(self, pod: PodRef) -> Callable[[], None]:
        def look() -> None:
            found = self._records.whereabouts(pod)
            with self._judge.lock:
                self._judge.patience.judge(pod, found, self._clock())
            self.wake()

        return look
