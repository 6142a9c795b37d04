# SPDX-License-Identifier: Apache-2.0
"""The monitor's thread against a scripted driver: failures, back-off, publishing, stopping."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from deviceplugin.diagnosis import Xid
from deviceplugin.driver import Cause, DriverError
from deviceplugin.health import HealthMonitor, HealthSettings
from deviceplugin.inventory import GONE, Gpu, Inventory, Reading
from gpuslice.contract.names import GpuUuid

A = Gpu(uuid=GpuUuid("GPU-a"), index=0, product="NVIDIA L4", memory_mib=23034)
B = Gpu(uuid=GpuUuid("GPU-b"), index=1, product="NVIDIA L4", memory_mib=23034)
BOTH = Reading(gpus=(A, B))
BROKEN = DriverError("the driver can't tell anything", cause=Cause.CALL_FAILED)
QUICK = HealthSettings(
    poll_seconds=0.005, wake_seconds=0.005, retry_seconds=0.01, most_retry_seconds=0.08
)
DEADLINE_SECONDS = 10


class Changes:
    """What a monitor published: a state that lasts a moment is not missed."""

    def __init__(self) -> None:
        self._came = threading.Condition()
        self.items: list[Inventory] = []
        self._next = 0

    def __call__(self, inventory: Inventory) -> None:
        with self._came:
            self.items.append(inventory)
            self._came.notify_all()

    def wait_for(self, is_so: Callable[[Inventory], bool]) -> Inventory:
        """Return the first change since the last one returned that is so."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        with self._came:
            while True:
                while self._next < len(self.items):
                    self._next += 1
                    if is_so(self.items[self._next - 1]):
                        return self.items[self._next - 1]
                left = deadline - time.monotonic()
                assert left > 0, self.items[-1:]
                self._came.wait(left)


class FakeEvents:
    def __init__(self, driver: FakeDriver) -> None:
        self.deaf: dict[int, str] = {}
        reading = driver.reading
        self.asked = reading.partitioned | {gpu.mig_parent or gpu.uuid for gpu in reading.gpus}
        self._driver = driver

    def wait(self, timeout_seconds: float) -> Xid | None:
        with self._driver.looked:
            self._driver.waits += 1
            self._driver.looked.notify_all()
        if self._driver.wait_error is not None:
            raise self._driver.wait_error
        try:
            return self._driver.xids.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def close(self) -> None:
        self._driver.open_sets -= 1


class FakeDriver:
    """A driver whose answers a test changes while it runs."""

    def __init__(self, reading: Reading = BOTH) -> None:
        self.reading = reading
        self.changes = Changes()
        self.hidden_until_reopened: Reading | None = None
        self.open_error: DriverError | None = None
        self.read_error: DriverError | None = None
        self.wait_error: DriverError | None = None
        self.watch_error: DriverError | None = None
        self.xids: queue.Queue[Xid] = queue.Queue()
        self.looked = threading.Condition()
        self.opens = self.looks = self.waits = self.watches = self.open_sets = 0

    def open(self) -> None:
        self.opens += 1
        if self.open_error is not None:
            raise self.open_error
        if self.hidden_until_reopened is not None and self.looks:
            self.reading, self.hidden_until_reopened = self.hidden_until_reopened, None

    def close(self) -> None:
        pass

    def read(self) -> Reading:
        with self.looked:
            self.looks += 1
            self.looked.notify_all()
        if self.read_error is not None:
            raise self.read_error
        return self.reading

    def watch(self) -> FakeEvents:
        self.watches += 1
        if self.watch_error is not None:
            raise self.watch_error
        self.open_sets += 1
        return FakeEvents(self)

    def wait_looks(self, more: int) -> None:
        with self.looked:
            goal = self.looks + more
            assert self.looked.wait_for(lambda: self.looks >= goal, DEADLINE_SECONDS)


@contextmanager
def watching(
    driver: FakeDriver,
    settings: HealthSettings = QUICK,
    known: Inventory = Inventory(),  # noqa: B008 - a frozen value
    on_change: Callable[[Inventory], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[HealthMonitor]:
    monitor = HealthMonitor(
        driver,
        known=known,
        settings=settings,
        on_change=on_change or driver.changes,
        clock=clock,
    )
    monitor.start()
    yield monitor
    begun = time.monotonic()
    monitor.stop()
    assert time.monotonic() - begun < 1
    assert driver.open_sets == 0


def reason_of(inventory: Inventory, gpu: Gpu) -> str:
    found = inventory.find(gpu.uuid)
    assert found is not None
    return found.reason


def test_the_first_look_is_published() -> None:
    driver = FakeDriver()
    with watching(driver) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        assert monitor.inventory == Inventory(gpus=(A, B))
        assert monitor.problem == ""
    assert driver.changes.items == [Inventory(gpus=(A, B))]


def test_an_xid_makes_its_gpu_sick_and_good_looks_make_it_well() -> None:
    driver = FakeDriver()
    with watching(driver) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.xids.put(Xid(number=79, gpu=A.uuid))
        sick = driver.changes.wait_for(lambda inventory: reason_of(inventory, A) == "XID 79")
        assert reason_of(sick, B) == ""
        driver.changes.wait_for(lambda inventory: reason_of(inventory, A) == "")
    assert [reason_of(each, A) for each in driver.changes.items] == ["", "XID 79", ""]


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 109])
def test_xids_of_programs_are_ignored(number: int) -> None:
    driver = FakeDriver()
    with watching(driver) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.xids.put(Xid(number=number, gpu=A.uuid))
        driver.xids.put(Xid(number=48, gpu=B.uuid))
        sick = driver.changes.wait_for(lambda inventory: reason_of(inventory, B) == "XID 48")
        assert reason_of(sick, A) == ""


def test_which_xids_are_ignored_is_a_setting() -> None:
    driver = FakeDriver()
    settings = dataclasses.replace(QUICK, ignored_xids=frozenset({79}))
    with watching(driver, settings) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.xids.put(Xid(number=79, gpu=A.uuid))
        driver.xids.put(Xid(number=13, gpu=B.uuid))
        sick = driver.changes.wait_for(lambda inventory: reason_of(inventory, B) == "XID 13")
        assert reason_of(sick, A) == ""


def test_a_gpu_that_vanished_is_sick_and_comes_back_with_a_new_count() -> None:
    """NVML counts at init, so only opening the driver anew shows a GPU that was reset."""
    driver = FakeDriver()
    with watching(driver) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.hidden_until_reopened = BOTH
        driver.reading = Reading(gpus=(A,))
        gone = driver.changes.wait_for(lambda inventory: reason_of(inventory, B) == GONE)
        assert reason_of(gone, A) == ""
        driver.changes.wait_for(lambda inventory: reason_of(inventory, B) == "")
        assert driver.opens == 2


def test_recovery_takes_the_reads_that_were_set() -> None:
    """The clock stands still but for the test: each look is one that the test asked for."""
    now = [0.0]
    driver = FakeDriver()
    settings = HealthSettings(poll_seconds=5, wake_seconds=0.005, recover_after_reads=3)

    def tick() -> None:
        with driver.looked:
            looks = driver.looks
            now[0] += 5
            assert driver.looked.wait_for(lambda: driver.looks > looks, DEADLINE_SECONDS)
            # A look is told before it is done; then the monitor waits again.
            waits = driver.waits
            assert driver.looked.wait_for(lambda: driver.waits > waits, DEADLINE_SECONDS)

    with watching(driver, settings, clock=lambda: now[0]) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.xids.put(Xid(number=79, gpu=A.uuid))
        driver.changes.wait_for(lambda inventory: reason_of(inventory, A) == "XID 79")
        tick()
        tick()
        assert reason_of(monitor.inventory, A) == "XID 79"
        tick()
        assert reason_of(monitor.inventory, A) == ""
        assert driver.looks == 4


def test_new_ecc_errors_make_a_gpu_sick() -> None:
    driver = FakeDriver(dataclasses.replace(BOTH, uncorrected_errors={A.uuid: 5}))
    with watching(driver) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.wait_looks(2)
        assert reason_of(monitor.inventory, A) == ""
        driver.reading = dataclasses.replace(BOTH, uncorrected_errors={A.uuid: 6})
        sick = driver.changes.wait_for(lambda inventory: reason_of(inventory, A) != "")
        assert reason_of(sick, A) == "1 new uncorrected ECC errors"
        assert reason_of(sick, B) == ""


# --- the driver as a whole


def test_a_missing_driver_is_waited_for() -> None:
    driver = FakeDriver()
    driver.open_error = DriverError("no libnvidia-ml.so.1", cause=Cause.NO_LIBRARY)
    with watching(driver) as monitor:
        assert not monitor.wait_ready(0.1)
        assert (monitor.problem, monitor.cause) == ("no libnvidia-ml.so.1", Cause.NO_LIBRARY)
        driver.open_error = None
        assert monitor.wait_ready(DEADLINE_SECONDS)
        assert (monitor.problem, monitor.cause) == ("", None)


def test_the_pauses_between_openings_grow() -> None:
    driver = FakeDriver()
    driver.open_error = BROKEN
    settings = dataclasses.replace(QUICK, retry_seconds=0.02, most_retry_seconds=10)
    with watching(driver, settings) as monitor:
        assert not monitor.wait_ready(0.5)
        # 20 + 40 + 80 + 160 + 320 ms is over half a second.
        assert 2 <= driver.opens <= 6


def test_a_driver_that_fails_once_makes_no_gpu_sick() -> None:
    driver = FakeDriver()
    with watching(driver) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        read, failed = driver.read, []

        def fail_once() -> Reading:
            reading = read()
            if not failed:
                failed.append(True)
                raise BROKEN
            return reading

        driver.read = fail_once  # type: ignore[method-assign] - the script of this test
        driver.wait_looks(5)
        assert failed
        assert monitor.problem == ""
    assert driver.changes.items == [Inventory(gpus=(A, B))]


def test_a_driver_that_keeps_failing_makes_all_gpus_sick_until_it_answers() -> None:
    driver = FakeDriver()
    with watching(driver) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.read_error = BROKEN
        sick = driver.changes.wait_for(lambda inventory: reason_of(inventory, A) != "")
        assert {reason_of(sick, A), reason_of(sick, B)} == {"driver: call failed"}
        assert monitor.problem == str(BROKEN)
        driver.read_error = None
        driver.changes.wait_for(lambda inventory: reason_of(inventory, A) == "")


def test_events_that_cannot_be_waited_for_make_no_gpu_sick_and_no_hot_loop() -> None:
    """NVIDIA's plugin marks all GPUs unhealthy here, and asks again without a pause."""
    driver = FakeDriver()
    driver.wait_error = BROKEN
    settings = dataclasses.replace(QUICK, most_retry_seconds=10)
    with watching(driver, settings) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.wait_looks(40)
        assert driver.waits <= 8
        assert all(gpu.healthy for gpu in monitor.inventory.gpus)


def test_without_any_events_polling_goes_on() -> None:
    driver = FakeDriver()
    driver.watch_error = BROKEN
    with watching(driver) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.reading = Reading(gpus=(A,))
        driver.changes.wait_for(lambda inventory: reason_of(inventory, B) == GONE)


def test_listening_can_be_turned_off() -> None:
    driver = FakeDriver()
    with watching(driver, dataclasses.replace(QUICK, listen=False)) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.wait_looks(3)
        assert driver.watches == 0


def test_a_gpu_that_came_is_listened_to() -> None:
    driver = FakeDriver(Reading(gpus=(A,)))
    with watching(driver) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.wait_looks(3)
        assert driver.watches == 1
        driver.reading = BOTH
        driver.changes.wait_for(lambda inventory: inventory.find(B.uuid) is not None)
        driver.wait_looks(2)
        assert driver.watches == 2


# --- starting, publishing, stopping


def test_what_was_sick_in_an_earlier_life_must_recover() -> None:
    sick = dataclasses.replace(A, healthy=False, reason="XID 79")
    driver = FakeDriver()
    with watching(driver, known=Inventory(gpus=(sick,))) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.changes.wait_for(lambda inventory: reason_of(inventory, A) == "")
    assert [reason_of(each, A) for each in driver.changes.items] == ["XID 79", ""]


def test_a_known_gpu_that_is_not_there_at_the_start_is_sick() -> None:
    with watching(FakeDriver(Reading(gpus=(A,))), known=Inventory(gpus=(A, B))) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        assert reason_of(monitor.inventory, B) == GONE


def test_a_change_that_nobody_can_take_does_not_end_the_watch() -> None:
    driver = FakeDriver()

    def fail(_inventory: Inventory) -> None:
        raise ValueError("the publisher's fault")

    with watching(driver, on_change=fail) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.reading = Reading(gpus=(A,))
        driver.wait_looks(2)
        assert reason_of(monitor.inventory, B) == GONE


def test_retired_instances_are_forgotten_on_request() -> None:
    parent = GpuUuid("GPU-p")
    one = dataclasses.replace(A, uuid=GpuUuid("MIG-1"), mig_parent=parent, gpu_instance=1)
    driver = FakeDriver(Reading(gpus=(one,), partitioned=frozenset({parent})))
    with watching(driver) as monitor:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        driver.reading = Reading(partitioned=frozenset({parent}))
        driver.changes.wait_for(lambda inventory: not inventory.gpus[0].healthy)
        monitor.forget_retired(claimed={one.uuid})
        assert monitor.inventory.find(one.uuid) is not None
        monitor.forget_retired(claimed=set())
        assert monitor.inventory == Inventory()


def test_a_monitor_that_waits_for_its_driver_stops_at_once() -> None:
    driver = FakeDriver()
    driver.open_error = BROKEN
    slow = HealthSettings(retry_seconds=60, most_retry_seconds=60)
    with watching(driver, slow) as monitor:
        assert not monitor.wait_ready(0.05)


def test_a_monitor_that_was_never_started_can_be_stopped() -> None:
    HealthMonitor(FakeDriver()).stop()


def test_what_was_sick_before_a_restart_must_look_well_again_first() -> None:
    """The ledger is read later than the GPUs: that must not make a sick GPU well."""
    driver = FakeDriver()
    sick = dataclasses.replace(A, healthy=False, reason="XID 79")
    monitor = HealthMonitor(
        driver,
        settings=dataclasses.replace(QUICK, recover_after_reads=20),
        on_change=driver.changes,
    )
    monitor.start()
    try:
        assert monitor.wait_ready(DEADLINE_SECONDS)
        monitor.recall(Inventory(gpus=(sick, B)))
        found = driver.changes.wait_for(lambda each: not each.gpus[0].healthy)
        looks = driver.looks
        assert found.gpus[0].reason == "XID 79"
        assert found.gpus[1].healthy
        driver.changes.wait_for(lambda each: each.gpus[0].healthy)
        assert driver.looks - looks >= 19
    finally:
        monitor.stop()


def test_a_problem_is_told_with_its_cause_and_its_end() -> None:
    driver = FakeDriver()
    driver.open_error = DriverError("two versions", cause=Cause.MISMATCH)
    told: queue.Queue[tuple[str, Cause | None]] = queue.Queue()
    monitor = HealthMonitor(
        driver, settings=QUICK, on_problem=lambda problem, cause: told.put((problem, cause))
    )
    monitor.start()
    try:
        assert told.get(timeout=DEADLINE_SECONDS) == ("two versions", Cause.MISMATCH)
        driver.open_error = None
        while (last := told.get(timeout=DEADLINE_SECONDS))[0]:
            pass
        assert last == ("", None)
    finally:
        monitor.stop()
