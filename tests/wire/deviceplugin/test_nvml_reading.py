# SPDX-License-Identifier: Apache-2.0
"""The device plugin's reading of the hardware, against the C library and the real pynvml."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from deviceplugin.diagnosis import Xid
from deviceplugin.driver import Cause, DriverError, find_library
from deviceplugin.inventory import Gpu, GpuProcess, MigUse, Reading
from deviceplugin.nvml import Nvml
from gpuslice.contract.names import GpuUuid
from gpuslice.sim.nvml.driver_root import DriverRoot
from gpuslice.sim.nvml.machine import MIB, Answer, Machine

L4, T4, A100 = GpuUuid("GPU-l4"), GpuUuid("GPU-t4"), GpuUuid("GPU-a100")
ALL = (L4, T4, "MIG-three", "MIG-one")


def uuids(reading: Reading) -> tuple[str, ...]:
    return tuple(gpu.uuid for gpu in reading.gpus)


def reasons(reading: Reading) -> list[tuple[int, str | None, str]]:
    return [(each.index, each.uuid, each.reason) for each in reading.unreadable]


def test_gpus_and_mig_instances_are_read_with_all_facts(nvml: Nvml) -> None:
    reading = nvml.read()
    assert reading.gpus == (
        Gpu(
            uuid=L4,
            index=0,
            product="NVIDIA L4",
            memory_mib=23034,
            reserved_mib=535,
            numa_node=1,
            minor_number=2,
            pci_bus_id="00000000:3B:00.0",
        ),
        Gpu(
            uuid=T4,
            index=1,
            product="Tesla T4",
            # 15360 MiB less 446 MiB and 5 bytes: the started MiB isn't sold.
            memory_mib=14913,
            reserved_mib=447,
            minor_number=0,
            pci_bus_id="00000000:86:00.0",
        ),
        Gpu(
            uuid=GpuUuid("MIG-three"),
            index=2,
            product="NVIDIA A100-SXM4-40GB MIG 3g.20gb",
            memory_mib=19967,
            reserved_mib=1,
            minor_number=1,
            pci_bus_id="00000001:AF:00.0",
            mig_parent=A100,
            gpu_instance=2,
            compute_instance=0,
        ),
        Gpu(
            uuid=GpuUuid("MIG-one"),
            index=2,
            product="NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            memory_mib=4864,
            minor_number=1,
            pci_bus_id="00000001:AF:00.0",
            mig_parent=A100,
            gpu_instance=9,
            compute_instance=0,
        ),
    )
    assert reading.partitioned == {A100}
    assert reading.unreadable == reading.notes == ()
    assert nvml.driver_version() == "570.124.06"


def test_mig_gpus_are_left_out_where_the_setting_says_skip(driver_root: DriverRoot) -> None:
    nvml = Nvml(driver_root.path, mig=MigUse.SKIP)
    nvml.open()
    assert uuids(nvml.read()) == (L4, T4)
    nvml.close()


def test_mig_mode_turned_off_at_run_time_is_noticed(nvml: Nvml, driver_root: DriverRoot) -> None:
    def turn_off(machine: Machine) -> Machine:
        whole = dataclasses.replace(machine.gpu(A100), mig_mode=0, instances=())
        return machine.with_gpu(whole)

    driver_root.inject(turn_off)
    assert uuids(nvml.read()) == (L4, T4, A100)


# --- one bad GPU never hides the others


def test_a_gpu_lost_before_the_first_look_hides_no_other(
    driver_root: DriverRoot,
) -> None:
    driver_root.lose(L4)
    nvml = Nvml(driver_root.path)
    nvml.open()
    reading = nvml.read()
    assert uuids(reading) == ALL[1:]
    assert reasons(reading) == [(0, None, "GPU is lost")]
    nvml.close()


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetName",
        "nvmlDeviceGetMemoryInfo_v2",
    ],
)
@pytest.mark.parametrize("answer", [Answer.NOT_SUPPORTED, Answer.FUNCTION_NOT_FOUND])
def test_a_gpu_that_lacks_a_fact_is_sold_without_it(
    nvml: Nvml, driver_root: DriverRoot, function: str, answer: Answer
) -> None:
    driver_root.fail(function, answer, gpu=L4)
    assert uuids(nvml.read()) == ALL


def test_a_driver_that_cannot_tell_its_reserve_sells_all_and_says_so(
    nvml: Nvml, driver_root: DriverRoot
) -> None:
    """What programs use at the moment must not count as reserve, or M changes at each start."""
    driver_root.fail("nvmlDeviceGetMemoryInfo_v2", Answer.NOT_SUPPORTED)
    reading = nvml.read()
    assert (reading.gpus[0].memory_mib, reading.gpus[0].reserved_mib) == (23569, 0)
    assert reading.notes[0] == "GPU-l4: the driver can't tell its reserve: all is sold"


@pytest.mark.parametrize(
    ("function", "answer", "answers"),
    [
        pytest.param("nvmlDeviceGetMemoryInfo*", Answer.NOT_SUPPORTED, True, id="no memory query"),
        pytest.param("nvmlDeviceGetMemoryInfo*", Answer.UNKNOWN, False, id="memory query fails"),
        # Taken for "has no MIG", an A100 would be sold whole beside its instances.
        pytest.param("nvmlDeviceGetMigMode", Answer.UNKNOWN, False, id="MIG query fails"),
        pytest.param("nvmlDeviceGetUUID", Answer.UNKNOWN, False, id="no uuid"),
    ],
)
def test_a_gpu_that_cannot_be_sold_is_left_out_with_a_reason(
    nvml: Nvml, driver_root: DriverRoot, function: str, answer: Answer, *, answers: bool
) -> None:
    driver_root.fail(function, answer, gpu=L4)
    reading = nvml.read()
    assert uuids(reading) == ALL[1:]
    (left_out,) = reading.unreadable
    assert left_out.index == 0
    assert left_out.reason
    assert left_out.answers == answers


def test_memory_that_is_not_available_is_no_17_million_terabytes(
    nvml: Nvml, driver_root: DriverRoot
) -> None:
    driver_root.inject(
        lambda machine: machine.with_gpu(dataclasses.replace(machine.gpu(L4), memory_na=True))
    )
    reading = nvml.read()
    assert uuids(reading) == ALL[1:]
    assert reasons(reading) == [(0, L4, "the driver can't tell its memory")]


def test_a_sick_mig_instance_hides_no_other(nvml: Nvml, driver_root: DriverRoot) -> None:
    def break_one(machine: Machine) -> Machine:
        parent = machine.gpu(A100)
        first = dataclasses.replace(parent.instances[0], memory_na=True)
        sick = dataclasses.replace(parent, instances=(first, *parent.instances[1:]))
        return machine.with_gpu(sick)

    driver_root.inject(break_one)
    reading = nvml.read()
    assert uuids(reading) == (L4, T4, "MIG-one")
    assert reasons(reading) == [(2, "MIG-three", "the driver can't tell its memory")]


def test_uuids_stay_when_indices_change(nvml: Nvml, driver_root: DriverRoot) -> None:
    before = {gpu.uuid: gpu for gpu in nvml.read().gpus}
    driver_root.inject(
        lambda machine: dataclasses.replace(machine, gpus=tuple(reversed(machine.gpus)))
    )
    nvml.close()
    nvml.open()
    after = {gpu.uuid: gpu for gpu in nvml.read().gpus}
    assert after[L4].index == 2
    assert after == {
        uuid: dataclasses.replace(gpu, index=after[uuid].index) for uuid, gpu in before.items()
    }


# --- processes, compute mode, ECC


def test_processes_are_told_by_gpu_and_instance(nvml: Nvml) -> None:
    assert nvml.processes() == (
        GpuProcess(gpu=L4, pid=4711, used_mib=2),
        GpuProcess(gpu=L4, pid=4712, used_mib=None),
        GpuProcess(gpu=GpuUuid("MIG-three"), pid=99, used_mib=1),
    )


def test_a_gpu_that_cannot_list_processes_hides_no_others(
    nvml: Nvml, driver_root: DriverRoot
) -> None:
    driver_root.fail("nvmlDeviceGetComputeRunningProcesses_v3", Answer.UNKNOWN, gpu=L4)
    assert [each.pid for each in nvml.processes()] == [99]


def test_the_compute_mode_is_set_and_read(nvml: Nvml, driver_root: DriverRoot) -> None:
    nvml.set_compute_mode(T4, 3)
    assert (nvml.compute_mode(T4), nvml.compute_mode(L4)) == (3, 0)
    driver_root.fail("nvmlDeviceSetComputeMode", Answer.NO_PERMISSION)
    with pytest.raises(DriverError, match=r"compute mode of GPU-t4 to 0: Insufficient Permissions"):
        nvml.set_compute_mode(T4, 0)


def test_uncorrected_errors_are_counted_for_those_that_can(
    nvml: Nvml, driver_root: DriverRoot
) -> None:
    def spoil(machine: Machine) -> Machine:
        machine = machine.with_gpu(dataclasses.replace(machine.gpu(L4), ecc_uncorrected=4))
        return machine.with_gpu(dataclasses.replace(machine.gpu(T4), ecc_enabled=False))

    driver_root.inject(spoil)
    assert nvml.read().uncorrected_errors == {L4: 4, A100: 0}


# --- the driver as a whole


def test_a_driver_that_stops_answering_is_an_error_of_the_whole(
    nvml: Nvml, driver_root: DriverRoot
) -> None:
    driver_root.fail("nvmlDevice*", Answer.UNKNOWN)
    with pytest.raises(DriverError, match=r"the number of GPUs: Unknown Error") as caught:
        nvml.read()
    assert caught.value.cause is Cause.CALL_FAILED
    driver_root.heal()
    assert uuids(nvml.read()) == ALL


def test_a_version_mismatch_says_what_to_do(driver_root: DriverRoot) -> None:
    driver_root.fail("nvmlInit*", Answer.LIB_RM_VERSION_MISMATCH)
    nvml = Nvml(driver_root.path)
    with pytest.raises(DriverError, match=r"restart this pod, and reboot the node") as caught:
        nvml.open()
    assert caught.value.cause is Cause.MISMATCH
    driver_root.heal()
    nvml.open()
    nvml.close()


def test_a_library_without_its_driver_is_told_from_no_library(driver_root: DriverRoot) -> None:
    driver_root.fail("nvmlInit*", Answer.DRIVER_NOT_LOADED)
    with pytest.raises(DriverError, match=r"finds no usable driver: Driver Not Loaded") as caught:
        Nvml(driver_root.path).open()
    assert caught.value.cause is Cause.NO_DRIVER


def test_a_second_driver_root_in_one_process_is_refused(
    nvml: Nvml, tmp_path: Path, nvml_library: Path
) -> None:
    other = DriverRoot.lay_out(tmp_path, Machine(), library=nvml_library)
    with pytest.raises(DriverError, match=r"another one was loaded first"):
        Nvml(other.path).open()


def test_a_missing_library_is_an_error_that_names_the_places(tmp_path: Path) -> None:
    with pytest.raises(DriverError) as caught:
        Nvml(tmp_path).open()
    assert caught.value.cause is Cause.NO_LIBRARY
    message = str(caught.value)
    for place in ("usr/lib/x86_64-linux-gnu", "usr/lib64", "home/kubernetes/bin/nvidia/lib64"):
        assert str(tmp_path / place) in message


@pytest.mark.parametrize(
    "folder",
    [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib64",
        "lib64",
        "home/kubernetes/bin/nvidia/lib64",
        "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    ],
)
def test_the_library_is_found_where_distributions_put_it(tmp_path: Path, folder: str) -> None:
    library = tmp_path / folder / "libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert find_library(tmp_path) == library


def run_open(driver_root: Path) -> str:
    code = (
        "import sys, pathlib\n"
        "from deviceplugin.driver import DriverError\n"
        "from deviceplugin.nvml import Nvml\n"
        "try:\n"
        "    nvml = Nvml(pathlib.Path(sys.argv[1])); nvml.open(); print(nvml.driver_version())\n"
        "except DriverError as err: print(err.cause.value, '|', err)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(driver_root)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.strip()


def test_a_library_that_came_with_another_name_inside_is_refused(tmp_path: Path) -> None:
    """Pynvml would load whatever else bears the name, or nothing."""
    library = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    source = tmp_path / "empty.c"
    source.write_text("int nothing;\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libother.so", "-o", library, source],
        check=True,
        timeout=30,
    )
    assert run_open(tmp_path).startswith("no library | ")


def test_a_broken_library_is_an_error_with_its_path(tmp_path: Path) -> None:
    library = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.write_text("no library")
    answer = run_open(tmp_path)
    assert answer.startswith(f"no library | {library} can't be loaded: ")


def test_the_library_is_loaded_from_a_linked_file(tmp_path: Path, nvml_library: Path) -> None:
    """Real driver roots have a link from the plain name to the versioned file."""
    root = DriverRoot.lay_out(tmp_path, Machine(driver_version="999.1"), library=nvml_library)
    versioned = root.library.with_name("libnvidia-ml.so.999.1")
    root.library.rename(versioned)
    root.library.symlink_to(versioned.name)
    assert run_open(tmp_path) == "999.1"


def test_a_thousand_looks_and_openings_leave_nothing_open(nvml: Nvml) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    nvml.read()
    before = descriptors()
    for _ in range(200):
        events = nvml.watch()
        for _ in range(5):
            nvml.read()
        events.close()
        nvml.close()
        nvml.open()
    assert descriptors() == before


def test_memory_for_sale_is_less_than_a_mib_short(nvml: Nvml, machine: Machine) -> None:
    for gpu in nvml.read().gpus[:2]:
        simulated = machine.gpu(gpu.uuid)
        left = simulated.total_bytes - simulated.reserved_bytes - gpu.memory_mib * MIB
        assert 0 <= left < MIB


def test_the_last_word_of_a_gpu_that_fell_off_the_bus_is_heard(
    nvml: Nvml, driver_root: DriverRoot
) -> None:
    """When its XID arrives, it can't be asked for its UUID any more."""
    events = nvml.watch()
    driver_root.lose(L4)
    driver_root.raise_xid(L4, 79)
    assert events.wait(5) == Xid(number=79, gpu=L4)
    events.close()


def test_a_gpu_whose_xids_cannot_be_heard_is_named(nvml: Nvml, driver_root: DriverRoot) -> None:
    driver_root.fail("nvmlDeviceGetSupportedEventTypes", Answer.NOT_SUPPORTED, gpu=T4)
    driver_root.lose(A100)
    events = nvml.watch()
    assert events.asked == {L4, T4}
    assert events.deaf == {1: "Not Supported", 2: "GPU is lost"}
    assert events.wait(0) is None
    driver_root.fail("nvmlEventSetWait_v2", Answer.UNKNOWN)
    with pytest.raises(DriverError, match=r"waiting for XIDs: Unknown Error"):
        events.wait(0)
    events.close()
