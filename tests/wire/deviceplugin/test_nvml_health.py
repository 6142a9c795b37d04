# SPDX-License-Identifier: Apache-2.0
"""The monitor on the C library, through the real pynvml: faults injected while it runs."""

from __future__ import annotations

import dataclasses
import resource
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from deviceplugin.driver import Cause
from deviceplugin.health import HealthMonitor, HealthSettings
from deviceplugin.inventory import GONE, MIG_INSTANCE_GONE, Inventory
from deviceplugin.nvml import Nvml
from gpuslice.contract.names import GpuUuid
from gpuslice.sim.nvml.driver_root import DriverRoot
from gpuslice.sim.nvml.machine import Answer, Machine

L4, T4, A100 = GpuUuid("GPU-l4"), GpuUuid("GPU-t4"), GpuUuid("GPU-a100")
THREE, ONE = GpuUuid("MIG-three"), GpuUuid("MIG-one")
SETTINGS = HealthSettings(
    poll_seconds=0.03, wake_seconds=0.2, retry_seconds=0.03, most_retry_seconds=0.1
)
DEADLINE_SECONDS = 10


class Changes:
    """What a monitor published: a state that lasts a moment is not missed."""

    def __init__(self) -> None:
        self._came = threading.Condition()
        self._items: list[Inventory] = []
        self._next = 0

    def __call__(self, inventory: Inventory) -> None:
        with self._came:
            self._items.append(inventory)
            self._came.notify_all()

    def wait_for(self, is_so: Callable[[Inventory], bool]) -> Inventory:
        """Return the first change since the last one returned that is so."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        with self._came:
            while True:
                while self._next < len(self._items):
                    self._next += 1
                    if is_so(self._items[self._next - 1]):
                        return self._items[self._next - 1]
                left = deadline - time.monotonic()
                assert left > 0, self._items[-1:]
                self._came.wait(left)


@pytest.fixture
def changes() -> Changes:
    return Changes()


@pytest.fixture
def monitor(driver_root: DriverRoot, changes: Changes) -> Iterator[HealthMonitor]:
    monitor = HealthMonitor(Nvml(driver_root.path), settings=SETTINGS, on_change=changes)
    monitor.start()
    assert monitor.wait_ready(DEADLINE_SECONDS)
    yield monitor
    begun = time.monotonic()
    monitor.stop()
    assert time.monotonic() - begun < 1


def sick(inventory: Inventory) -> dict[str, str]:
    return {gpu.uuid: gpu.reason for gpu in inventory.gpus if not gpu.healthy}


def wait_sick(changes: Changes, expected: dict[GpuUuid, str]) -> None:
    changes.wait_for(lambda inventory: sick(inventory) == expected)


def test_an_xid_strikes_one_gpu_which_recovers(
    monitor: HealthMonitor, changes: Changes, driver_root: DriverRoot
) -> None:
    driver_root.raise_xid(T4, 31)
    driver_root.raise_xid(L4, 79)
    wait_sick(changes, {L4: "XID 79"})
    wait_sick(changes, {})


def test_an_xid_of_a_cut_gpu_strikes_its_instances(
    monitor: HealthMonitor, changes: Changes, driver_root: DriverRoot
) -> None:
    driver_root.raise_xid(A100, 94, gpu_instance=9, compute_instance=0)
    wait_sick(changes, {ONE: "XID 94"})
    driver_root.raise_xid(A100, 95)
    changes.wait_for(lambda inventory: sick(inventory).get(THREE) == "XID 95")
    wait_sick(changes, {})


def test_a_lost_gpu_is_sick_until_it_is_found_again(
    monitor: HealthMonitor, changes: Changes, driver_root: DriverRoot
) -> None:
    driver_root.lose(L4)
    wait_sick(changes, {L4: "GPU is lost"})
    driver_root.lose(L4, lost=False)
    wait_sick(changes, {})
    driver_root.raise_xid(L4, 62)
    changes.wait_for(lambda inventory: sick(inventory) == {L4: "XID 62"})


def test_a_gpu_taken_out_and_put_back_is_found_by_a_new_count(
    monitor: HealthMonitor, changes: Changes, driver_root: DriverRoot
) -> None:
    driver_root.remove(T4)
    changes.wait_for(lambda inventory: sick(inventory) == {T4: GONE})
    driver_root.remove(T4, missing=False)
    wait_sick(changes, {})


def test_new_uncorrected_errors_make_a_gpu_sick(
    monitor: HealthMonitor, changes: Changes, driver_root: DriverRoot
) -> None:
    driver_root.inject(
        lambda machine: machine.with_gpu(dataclasses.replace(machine.gpu(L4), ecc_uncorrected=2))
    )
    wait_sick(changes, {L4: "2 new uncorrected ECC errors"})
    wait_sick(changes, {})


def test_mig_instances_that_are_destroyed_are_noticed(
    monitor: HealthMonitor, changes: Changes, driver_root: DriverRoot
) -> None:
    def destroy_one(machine: Machine) -> Machine:
        parent = machine.gpu(A100)
        return machine.with_gpu(dataclasses.replace(parent, instances=parent.instances[:1]))

    driver_root.inject(destroy_one)
    wait_sick(changes, {ONE: MIG_INSTANCE_GONE})
    monitor.forget_retired(claimed=set())
    wait_sick(changes, {})


def test_gpus_without_events_are_still_polled(driver_root: DriverRoot, changes: Changes) -> None:
    driver_root.fail("nvmlDeviceRegisterEvents", Answer.NOT_SUPPORTED, gpu=L4)
    monitor = HealthMonitor(Nvml(driver_root.path), settings=SETTINGS, on_change=changes)
    monitor.start()
    assert monitor.wait_ready(DEADLINE_SECONDS)
    driver_root.raise_xid(T4, 48)
    wait_sick(changes, {T4: "XID 48"})
    driver_root.lose(L4)
    changes.wait_for(lambda inventory: sick(inventory).get(L4) == "GPU is lost")
    monitor.stop()


def test_a_driver_that_breaks_and_heals_is_opened_anew(
    monitor: HealthMonitor, changes: Changes, driver_root: DriverRoot
) -> None:
    driver_root.fail("nvmlDevice*", Answer.UNKNOWN)
    wait_sick(changes, dict.fromkeys((L4, T4, THREE, ONE), "driver: call failed"))
    assert "Unknown Error" in monitor.problem
    driver_root.heal()
    wait_sick(changes, {})
    assert monitor.problem == ""


def test_a_driver_that_was_upgraded_under_us_is_said(
    monitor: HealthMonitor, changes: Changes, driver_root: DriverRoot
) -> None:
    driver_root.fail("nvmlDevice*", Answer.UNKNOWN)
    driver_root.fail("nvmlInit*", Answer.LIB_RM_VERSION_MISMATCH)
    wait_sick(changes, dict.fromkeys((L4, T4, THREE, ONE), "driver: version mismatch"))
    assert monitor.cause is Cause.MISMATCH


def test_watching_costs_little_when_nothing_happens(driver_root: DriverRoot) -> None:
    """The goal for the whole plugin is 0.2 % of a core; 3 % here leaves room for a busy machine."""
    monitor = HealthMonitor(Nvml(driver_root.path))
    monitor.start()
    assert monitor.wait_ready(DEADLINE_SECONDS)
    before = resource.getrusage(resource.RUSAGE_SELF)
    monitor.wait_change(after=monitor.version, timeout_seconds=1.5)
    after = resource.getrusage(resource.RUSAGE_SELF)
    monitor.stop()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 1.5 * 0.03
