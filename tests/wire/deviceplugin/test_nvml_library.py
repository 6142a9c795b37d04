# SPDX-License-Identifier: Apache-2.0
"""The simulated libnvidia-ml.so.1, through the real pynvml: layouts, handles, faults, events."""

from __future__ import annotations

import ctypes
import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from gpuslice.sim.nvml.driver_root import BuildError, DriverRoot, build_library
from gpuslice.sim.nvml.machine import (
    MIB,
    WHOLE_GPU,
    Answer,
    Fault,
    Machine,
    MachineGpu,
    format_machine,
)
from gpuslice.sim.nvml.reading import parse_machine


@pytest.fixture
def opened(driver_root: DriverRoot) -> Iterator[DriverRoot]:
    ctypes.CDLL(str(driver_root.library), mode=ctypes.RTLD_GLOBAL)
    pynvml.nvmlInit()
    yield driver_root
    pynvml.nvmlShutdown()


def by_uuid(uuid: str) -> object:
    return pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())


def test_every_fact_of_the_machine_arrives_in_its_place(opened: DriverRoot) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    older = pynvml.nvmlDeviceGetMemoryInfo(handle)
    first, second = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)

    assert pynvml.nvmlSystemGetDriverVersion() == "570.124.06"
    assert pynvml.nvmlSystemGetNVMLVersion() == "12.570.124.06"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 12080
    assert pynvml.nvmlDeviceGetCount() == 3
    assert pynvml.nvmlDeviceGetName(handle) == "NVIDIA L4"
    assert pynvml.nvmlDeviceGetUUID(handle) == "GPU-l4"
    assert pynvml.nvmlDeviceGetMinorNumber(handle) == 2
    assert (pci.domain, pci.bus, pci.device, pci.busId) == (0, 0x3B, 0, "00000000:3B:00.0")
    assert list(pynvml.nvmlDeviceGetMemoryAffinity(handle, 2, 0)) == [2, 0]
    assert pynvml.nvmlDeviceGetCudaComputeCapability(handle) == (8, 9)
    assert (memory.total, memory.reserved) == (23569 * MIB, 535 * MIB)
    assert memory.used == 2 * MIB + 1
    assert memory.free + memory.used + memory.reserved == memory.total
    assert older.used == memory.used + memory.reserved
    assert (first.pid, first.usedGpuMemory, first.gpuInstanceId) == (4711, 2 * MIB + 1, WHOLE_GPU)
    assert (second.pid, second.usedGpuMemory) == (4712, None)
    assert pynvml.nvmlDeviceGetEccMode(handle) == [1, 1]
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0


def test_a_gpu_is_found_by_index_uuid_and_pci_bus(opened: DriverRoot) -> None:
    handles = [
        pynvml.nvmlDeviceGetHandleByIndex(1),
        by_uuid("GPU-t4"),
        pynvml.nvmlDeviceGetHandleByPciBusId(b"00000000:86:00.0"),
    ]
    assert [pynvml.nvmlDeviceGetIndex(handle) for handle in handles] == [1, 1, 1]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        pytest.param(
            lambda: pynvml.nvmlDeviceGetHandleByIndex(3),
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
            id="index past the last",
        ),
        pytest.param(lambda: by_uuid("GPU-none"), pynvml.NVML_ERROR_NOT_FOUND, id="no such uuid"),
        pytest.param(
            lambda: pynvml.nvmlDeviceGetMigMode(by_uuid("GPU-t4")),
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            id="MIG before Ampere",
        ),
        pytest.param(
            lambda: pynvml.nvmlDeviceGetMemoryInfo(by_uuid("GPU-t4"), 0x01000028),
            pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            id="unknown version of a structure",
        ),
        pytest.param(
            lambda: pynvml.nvmlDeviceGetMinorNumber(by_uuid("MIG-one")),
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            id="minor number of a MIG instance",
        ),
    ],
)
def test_a_wrong_question_gets_the_error_that_the_driver_gives(
    opened: DriverRoot, call: Callable[[], object], expected: int
) -> None:
    with pytest.raises(pynvml.NVMLError) as caught:
        call()
    assert expected == caught.value.value


def test_mig_instances_have_handles_of_their_own(opened: DriverRoot) -> None:
    parent = by_uuid("GPU-a100")
    three = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 0)
    back = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(three)

    assert pynvml.nvmlDeviceGetMigMode(parent) == [1, 1]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(parent) == 7
    assert pynvml.nvmlDeviceIsMigDeviceHandle(three).value == 1
    assert pynvml.nvmlDeviceGetName(three) == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert pynvml.nvmlDeviceGetGpuInstanceId(three) == 2
    assert pynvml.nvmlDeviceGetComputeInstanceId(three) == 0
    assert pynvml.nvmlDeviceGetAttributes_v2(three).memorySizeMB == 19968
    assert pynvml.nvmlDeviceGetUUID(back) == "GPU-a100"
    assert [each.pid for each in pynvml.nvmlDeviceGetComputeRunningProcesses(three)] == [99]
    of_parent = pynvml.nvmlDeviceGetComputeRunningProcesses(parent)
    assert [(each.pid, each.gpuInstanceId) for each in of_parent] == [(99, 2)]
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 2)


def test_a_compute_mode_that_was_set_is_seen_by_other_processes(opened: DriverRoot) -> None:
    pynvml.nvmlDeviceSetComputeMode(by_uuid("GPU-t4"), 3)
    opened.inject(lambda machine: dataclasses.replace(machine, driver_version="580.1"))

    assert (
        run_with_nvml(
            opened, "print(p.nvmlDeviceGetComputeMode(p.nvmlDeviceGetHandleByUUID(b'GPU-t4')))"
        )
        == "3"
    )
    assert pynvml.nvmlDeviceGetComputeMode(by_uuid("GPU-l4")) == 0
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetComputeMode(by_uuid("GPU-t4"), 1)


def test_a_handle_outlives_the_loss_and_return_of_its_gpu(opened: DriverRoot) -> None:
    handle = by_uuid("GPU-l4")
    opened.lose("GPU-l4")
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetUUID(handle)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetCount() == 3
    assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1)) == "Tesla T4"
    opened.lose("GPU-l4", lost=False)
    assert pynvml.nvmlDeviceGetUUID(handle) == "GPU-l4"


def test_gpus_are_counted_at_init_and_not_again(opened: DriverRoot) -> None:
    opened.remove("GPU-l4")
    assert pynvml.nvmlDeviceGetCount() == 3
    pynvml.nvmlInit()  # a second user of the same process
    assert pynvml.nvmlDeviceGetCount() == 3
    pynvml.nvmlShutdown()
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)) == "GPU-t4"
    opened.remove("GPU-l4", missing=False)
    assert pynvml.nvmlDeviceGetCount() == 2
    with pytest.raises(pynvml.NVMLError_NotFound):
        by_uuid("GPU-l4")


def test_a_fault_strikes_the_named_function_and_gpu_only(opened: DriverRoot) -> None:
    opened.fail("nvmlDeviceGetMemoryInfo*", Answer.NOT_SUPPORTED, gpu="GPU-l4")
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMemoryInfo(by_uuid("GPU-l4"))
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMemoryInfo(by_uuid("GPU-l4"), pynvml.nvmlMemory_v2)
    assert pynvml.nvmlDeviceGetName(by_uuid("GPU-l4")) == "NVIDIA L4"
    assert pynvml.nvmlDeviceGetMemoryInfo(by_uuid("GPU-t4")).total == 16106127360
    opened.heal()
    assert pynvml.nvmlDeviceGetMemoryInfo(by_uuid("GPU-l4")).total == 23569 * MIB


def test_a_slow_gpu_does_not_hold_up_the_others(opened: DriverRoot) -> None:
    fault = Fault(function="nvmlDeviceGetName", delay_ms=700)
    opened.inject(lambda machine: machine.with_fault(fault, gpu="GPU-l4"))
    slow, quick = by_uuid("GPU-l4"), by_uuid("GPU-t4")
    names: list[str] = []
    waiting = threading.Thread(target=lambda: names.append(pynvml.nvmlDeviceGetName(slow)))
    waiting.start()
    begun = time.monotonic()
    while time.monotonic() - begun < 0.3:
        assert pynvml.nvmlDeviceGetName(quick) == "Tesla T4"
    assert names == []
    waiting.join(10)
    assert names == ["NVIDIA L4"]


def test_a_machine_that_makes_no_sense_leaves_the_last_good_one(opened: DriverRoot) -> None:
    opened.machine_file.write_text("gpu GPU-x\nwrong line\n")
    assert pynvml.nvmlDeviceGetName(by_uuid("GPU-l4")) == "NVIDIA L4"


def test_calls_before_init_are_refused(driver_root: DriverRoot) -> None:
    ctypes.CDLL(str(driver_root.library), mode=ctypes.RTLD_GLOBAL)
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


# --- events


def test_an_xid_arrives_within_50_ms_of_its_cause_and_once(opened: DriverRoot) -> None:
    events = pynvml.nvmlEventSetCreate()
    handle = by_uuid("GPU-l4")
    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    arrived: list[tuple[float, int, str]] = []

    def wait() -> None:
        event = pynvml.nvmlEventSetWait_v2(events, 10_000)
        arrived.append((time.monotonic(), event.eventData, pynvml.nvmlDeviceGetUUID(event.device)))

    waiter = threading.Thread(target=wait)
    waiter.start()
    opened.raise_xid("GPU-t4", 48)  # not registered
    opened.raise_xid("GPU-l4", 79)
    injected = time.monotonic()
    waiter.join(10)
    # Ten times the goal: this machine may be busy.
    assert arrived[0][0] - injected < 0.5
    assert arrived[0][1:] == (79, "GPU-l4")
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 60)
    pynvml.nvmlEventSetFree(events)


def test_a_new_event_set_hears_nothing_of_the_past(opened: DriverRoot) -> None:
    opened.raise_xid("GPU-l4", 79)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(by_uuid("GPU-l4"), 8, events)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 0)
    pynvml.nvmlEventSetFree(events)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlEventSetWait_v2(events, 0)


def test_many_threads_may_ask_while_the_machine_changes(opened: DriverRoot) -> None:
    wrong: list[object] = []
    end = threading.Event()

    def ask() -> None:
        while not end.is_set():
            try:
                name = pynvml.nvmlDeviceGetName(by_uuid("GPU-t4"))
                count = len(pynvml.nvmlDeviceGetComputeRunningProcesses(by_uuid("GPU-l4")))
            except pynvml.NVMLError as err:
                wrong.append(err)
                return
            if name != "Tesla T4" or count not in {0, 2}:
                wrong.append((name, count))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    full = opened.read()
    idle = full.with_gpu(dataclasses.replace(full.gpu("GPU-l4"), processes=()))
    for _ in range(100):
        opened.write(idle)
        opened.write(full)
    end.set()
    for thread in threads:
        thread.join(10)
    assert wrong == []


# --- building, loading, files


def run_with_nvml(root: DriverRoot, code: str, **environment: str) -> str:
    """Run code in a process of its own, with pynvml as `p` initialised on a driver root."""
    whole = (
        f"import ctypes; ctypes.CDLL({str(root.library)!r}, mode=ctypes.RTLD_GLOBAL)\n"
        f"import pynvml as p; p.nvmlInit()\n{code}"
    )
    done = subprocess.run(
        [sys.executable, "-c", whole],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=environment,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_two_driver_roots_have_two_machines(tmp_path: Path, nvml_library: Path) -> None:
    roots = [
        DriverRoot.lay_out(
            tmp_path / name, Machine(gpus=(MachineGpu(uuid=name),)), library=nvml_library
        )
        for name in ("GPU-left", "GPU-right")
    ]
    tell = "print(p.nvmlDeviceGetUUID(p.nvmlDeviceGetHandleByIndex(0)))"
    assert [run_with_nvml(root, tell) for root in roots] == ["GPU-left", "GPU-right"]
    other = str(roots[1].machine_file)
    assert run_with_nvml(roots[0], tell, GPUSLICE_SIM_MACHINE=other) == "GPU-right"


def test_without_a_machine_there_is_no_driver(tmp_path: Path, nvml_library: Path) -> None:
    root = DriverRoot.lay_out(tmp_path, Machine(), library=nvml_library)
    root.machine_file.unlink()
    assert "Driver Not Loaded" in run_with_nvml(root, "")


def test_the_library_is_built_once_for_the_same_sources(nvml_library: Path) -> None:
    before = nvml_library.stat().st_mtime_ns
    assert build_library(nvml_library.parent.parent) == nvml_library
    assert nvml_library.stat().st_mtime_ns == before


def test_a_missing_compiler_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"apt-get install gcc libc6-dev") as caught:
        build_library(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_machine_is_read_back_as_it_was_written(
    driver_root: DriverRoot, machine: Machine
) -> None:
    assert driver_root.read() == machine
    assert parse_machine(format_machine(machine)) == machine
