# SPDX-License-Identifier: Apache-2.0
"""Keep the inventory true while the node runs: XIDs as they happen, everything else by looking.

One thread owns the driver. It never ends because the driver, a GPU or its events are missing: it
says what it waits for, and goes on when that comes.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from deviceplugin.backoff import Backoff
from deviceplugin.diagnosis import APPLICATION_XIDS, Care, Diagnosis, Xid, signs_in, struck_by
from deviceplugin.driver import Cause, DriverError
from deviceplugin.inventory import (
    Inventory,
    Reading,
    forget_retired,
    lacks_gpus,
    merge,
    with_reasons,
)
from gpuslice.contract.names import GpuUuid

log = structlog.get_logger(__name__)

STOP_SECONDS: Final = 1.0
FAILURES_BELIEVED: Final = 2
"""A driver that fails once is opened anew before its GPUs count as sick: kubelet refuses pods on
sick ones, and for ever."""


class XidSource(Protocol):
    """Where XIDs come from, one at a time."""

    @property
    def asked(self) -> frozenset[GpuUuid]:
        """The physical GPUs that were there when it began to listen."""

    @property
    def deaf(self) -> dict[int, str]:
        """The GPUs that it won't hear, by index, and why."""

    def wait(self, timeout_seconds: float) -> Xid | None:
        """Return the next XID, None if there is none in time; raise DriverError."""

    def close(self) -> None:
        """Stop listening."""


class Driver(Protocol):
    """The hardware, as `deviceplugin.nvml.Nvml` gives access to it."""

    def open(self) -> None:
        """Get ready, or raise DriverError."""

    def close(self) -> None:
        """Let go."""

    def read(self) -> Reading:
        """Look at every GPU, or raise DriverError."""

    def watch(self) -> XidSource:
        """Begin to listen, or raise DriverError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """How closely GPUs are watched."""

    ignored_xids: frozenset[int] = APPLICATION_XIDS
    special: Care = field(default_factory=Care)
    listen: bool = True
    """Whether XIDs count at all."""
    poll_seconds: float = 5.0
    """Between two looks at all GPUs."""
    recover_after_reads: int = 3
    """Good looks in a row that make a GPU well."""
    wake_seconds: float = 0.5
    """The longest wait for an event; stopping takes as long."""
    retry_seconds: float = 1.0
    """First pause before the driver is opened again; doubled up to `most_retry_seconds`."""
    most_retry_seconds: float = 30.0


def _backoff(settings: HealthSettings, clock: Callable[[], float]) -> Backoff:
    return Backoff(
        clock, first_seconds=settings.retry_seconds, most_seconds=settings.most_retry_seconds
    )


class HealthMonitor:
    """Owner of the driver, and of what is known of the GPUs. Any thread may ask it."""

    def __init__(
        self,
        driver: Driver,
        *,
        known: Inventory = Inventory(),  # noqa: B008 - a frozen value
        settings: HealthSettings = HealthSettings(),
        on_change: Callable[[Inventory], None] = lambda _inventory: None,
        on_problem: Callable[[str, Cause | None], None] = lambda _problem, _cause: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with what an earlier life knew.

        Args:
            driver: it is opened and closed by this monitor's thread only.
            known: e.g. of the `GpuNode` in the API. What was sick there must pass its reads again.
            settings: how closely to watch.
            on_change: called in the monitor's thread after every change of the inventory.
            on_problem: called in the monitor's thread each time that the driver can't be asked,
                and with an empty text once it can be asked again.
            clock: monotonic, in seconds.
        """
        self._driver = driver
        self._settings = settings
        self._on_change = on_change
        self._on_problem = on_problem
        self._clock = clock
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._facts = self._inventory = known
        self._diagnosis = Diagnosis(recover_after_reads=settings.recover_after_reads)
        for gpu in known.gpus:
            if not gpu.healthy:
                self._diagnosis = self._diagnosis.after_event(gpu.uuid, gpu.reason)
        self._errors: dict[GpuUuid, int] = {}
        self._version = 0
        self._looks = 0
        self._problem = ""
        self._cause: Cause | None = None
        self._notes: frozenset[str] = frozenset()
        self._lacking = False
        self._events: XidSource | None = None
        self._watched: frozenset[GpuUuid] = frozenset()
        self._listening = _backoff(settings, clock)
        self._reopening = _backoff(settings, clock)

    # --- what others ask

    @property
    def inventory(self) -> Inventory:
        """What is known now."""
        with self._changed:
            return self._inventory

    @property
    def version(self) -> int:
        """Grows with every change of the inventory."""
        with self._changed:
            return self._version

    @property
    def problem(self) -> str:
        """Why the driver can't be asked, for logs and readiness; empty while it can."""
        with self._changed:
            return self._problem

    @property
    def cause(self) -> Cause | None:
        """The kind of problem: of MISMATCH only a new process is cured."""
        with self._changed:
            return self._cause

    def wait_ready(self, timeout_seconds: float) -> bool:
        """Wait for the first look at the hardware that succeeds; say whether there was one."""
        with self._changed:
            return self._changed.wait_for(lambda: self._looks > 0, timeout_seconds)

    def wait_change(self, *, after: int, timeout_seconds: float) -> int:
        """Wait until the version is above `after`, or the time is over; return the version."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > after, timeout_seconds)
            return self._version

    def recall(self, known: Inventory) -> None:
        """Take over what an earlier life knew to be sick: a restart is no proof of health."""
        with self._changed:
            for gpu in known.gpus:
                if not gpu.healthy and gpu.uuid not in self._diagnosis.reasons:
                    self._diagnosis = self._diagnosis.after_event(gpu.uuid, gpu.reason)
            changed = self._renew()
        self._publish(changed)

    def adjust(self, settings: HealthSettings) -> None:
        """Watch by other settings from the next look on; what is sick stays so until it is well."""
        with self._changed:
            self._settings = settings
            self._diagnosis = dataclasses.replace(
                self._diagnosis,
                recover_after_reads=settings.recover_after_reads,
                needed=settings.special.needed,
            )

    def forget_retired(self, *, claimed: AbstractSet[GpuUuid]) -> None:
        """Drop what MIG reconfigured away, but for GPUs of which something is claimed."""
        with self._changed:
            self._facts = forget_retired(self._facts, claimed=claimed)
            changed = self._renew()
        self._publish(changed)

    # --- its life

    def start(self) -> None:
        """Begin to watch, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; within a second unless the driver hangs."""
        self._stop.set()
        if self._thread.ident is None:
            return
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            log.warning("health_thread_hangs", waited_seconds=STOP_SECONDS)

    def _run(self) -> None:
        failures = 0
        pause = _backoff(self._settings, self._clock)
        while not self._stop.is_set():
            try:
                self._driver.open()
                # Listening first: what happens during the look is heard after it.
                self._listen_anew()
                self._look()
                failures = 0
                pause.reset()
                self._watch_until_stopped()
            except DriverError as err:
                failures += 1
                if failures >= FAILURES_BELIEVED or self._looks == 0:
                    self._note_problem(err)
                    self._stop.wait(pause.pause_seconds)
                    pause.failed()
            finally:
                self._let_go()

    def _watch_until_stopped(self) -> None:
        next_look = self._clock() + self._settings.poll_seconds
        while not self._stop.is_set():
            self._listen(max(0.0, min(self._settings.wake_seconds, next_look - self._clock())))
            if self._clock() < next_look:
                continue
            self._look()
            if self._lacking and self._reopening.is_due:
                # NVML counts GPUs when it is initialised: one that was reset comes back only so.
                self._reopening.failed()
                self._let_go()
                self._driver.open()
                self._listen_anew()
                self._look(again=True)
            elif not self._lacking:
                self._reopening.reset()
            next_look = self._clock() + self._settings.poll_seconds

    def _let_go(self) -> None:
        self._stop_listening()
        try:
            self._driver.close()
        except DriverError as err:
            log.info("driver_not_closed", problem=str(err))

    # --- looking

    def _look(self, *, again: bool = False) -> None:
        reading = self._driver.read()
        with self._changed:
            self._facts = merge(self._facts, reading)
            self._lacking = lacks_gpus(self._facts, reading)
            # A second look at the same moment is no second proof of health.
            if not again:
                signs = signs_in(self._facts, reading, self._errors)
                self._diagnosis = self._diagnosis.after_read(signs)
                self._errors = {**self._errors, **reading.uncorrected_errors}
            self._looks += 1
            cured = bool(self._problem)
            self._problem, self._cause = "", None
            changed = self._renew()
            self._changed.notify_all()
        if cured:
            log.info("driver_answers_again")
            self._on_problem("", None)
        self._tell(reading)
        self._publish(changed)
        self._listen_to_all(reading)

    def _tell(self, reading: Reading) -> None:
        unreadable = (
            f"GPU {each.uuid or each.index} is not sold: {each.reason}"
            for each in reading.unreadable
        )
        nothing = [] if reading.gpus or reading.partitioned else ["the driver finds no GPU"]
        notes = frozenset([*reading.notes, *unreadable, *nothing])
        for note in sorted(notes - self._notes):
            log.warning("gpu_note", note=note)
        self._notes = notes

    def _note_problem(self, err: DriverError) -> None:
        problem = str(err)
        with self._changed:
            if problem != self._problem:
                log.warning("driver_unavailable", problem=problem, cause=err.cause.value)
            self._problem, self._cause = problem, err.cause
            signs = {gpu.uuid: f"driver: {err.cause.value}" for gpu in self._facts.gpus}
            self._diagnosis = self._diagnosis.after_read(signs)
            changed = self._renew()
            self._changed.notify_all()
        self._publish(changed)
        self._on_problem(problem, err.cause)

    def _renew(self) -> Inventory | None:
        """Put facts and diagnosis together; the caller holds the lock, and publishes the answer."""
        inventory = with_reasons(self._facts, self._diagnosis.reasons)
        if inventory == self._inventory:
            return None
        self._inventory = inventory
        self._version += 1
        self._changed.notify_all()
        return inventory

    def _publish(self, changed: Inventory | None) -> None:
        if changed is None:
            return
        try:
            self._on_change(changed)
        except Exception:
            log.exception("inventory_change_not_taken")

    # --- listening

    def _listen(self, timeout_seconds: float) -> None:
        if self._events is None:
            self._stop.wait(timeout_seconds)
            return
        try:
            xid = self._events.wait(timeout_seconds)
        except DriverError as err:
            # Looking goes on meanwhile, so GPUs that are well stay so.
            log.warning("xids_unheard", problem=str(err), again_in=self._listening.pause_seconds)
            self._stop_listening()
            self._listening.failed()
            return
        self._listening.reset()
        if xid is not None:
            self._hear(xid)

    def _hear(self, xid: Xid) -> None:
        with self._changed:
            ignored, special = self._settings.ignored_xids, self._settings.special.ignored_xids
            struck = tuple(
                uuid
                for uuid in struck_by(xid, self._facts)
                if xid.number not in special.get(uuid, ignored)
            )
            for uuid in struck:
                self._diagnosis = self._diagnosis.after_event(uuid, f"XID {xid.number}")
            changed = self._renew()
        if not struck:
            log.info("xid_ignored", gpu_uuid=xid.gpu, xid=xid.number)
            return
        log.warning("xid", gpu_uuid=xid.gpu, xid=xid.number, struck=list(struck))
        self._publish(changed)

    def _listen_to_all(self, reading: Reading) -> None:
        """Listen anew when a GPU came (back) that the event set may not know."""
        present = reading.partitioned | {gpu.mig_parent or gpu.uuid for gpu in reading.gpus}
        if self._events is None or not present <= self._watched:
            self._listen_anew()
        self._watched &= present

    def _listen_anew(self) -> None:
        if not self._settings.listen or not self._listening.is_due:
            return
        try:
            fresh = self._driver.watch()
        except DriverError as err:
            log.warning("xids_unheard", problem=str(err), again_in=self._listening.pause_seconds)
            self._listening.failed()
            return
        self._stop_listening()
        self._events, self._watched = fresh, fresh.asked
        for index, reason in fresh.deaf.items():
            log.info("xids_of_gpu_unheard", index=index, reason=reason)

    def _stop_listening(self) -> None:
        if self._events is not None:
            self._events.close()
        self._events, self._watched = None, frozenset()
