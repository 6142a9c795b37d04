# SPDX-License-Identifier: Apache-2.0
"""What a container gets by each means and each mode: only its own GPUs."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path

import pytest

from deviceplugin import cdi, limits
from deviceplugin.allocation import Grant
from deviceplugin.cdi import CdiFile
from deviceplugin.contents import InjectionError
from deviceplugin.devicefiles import DeviceFiles
from deviceplugin.injection import Injection, ModeRules
from deviceplugin.inventory import Gpu as Hardware
from deviceplugin.inventory import Inventory
from deviceplugin.policies import Policy
from gpuslice.contract.names import GpuUuid
from gpuslice.contract.shares import Share
from tests.unit.deviceplugin.claims import claim, gpu, ledger, tokens

GPUS = (gpu(0), gpu(1))
LEDGER = ledger(GPUS)


def hardware(index: int, **more: object) -> Hardware:
    made = Hardware(
        uuid=GpuUuid(f"GPU-{index}"),
        index=index,
        product="NVIDIA L4",
        memory_mib=23034,
        minor_number=index + 4,
    )
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]  # a test's few fields


def grant(share: str, slices: int, *indexes: int) -> Grant:
    made = claim("a", share, slices, *(GPUS[index] for index in indexes))
    ids = frozenset().union(*(tokens(GPUS[index], range(slices)) for index in indexes))
    return Grant(tokens=ids, share=made.share, shape=made.shape, claimed=True)


@pytest.fixture
def files(tmp_path: Path) -> DeviceFiles:
    dev, driver = tmp_path / "dev", tmp_path / "driver"
    dev.mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia4", "nvidia5"):
        (dev / name).touch()
    libraries = driver / "usr" / "lib64"
    libraries.mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libother.so"):
        (libraries / name).touch()
    instance = tmp_path / "proc/driver/nvidia/capabilities/gpu4/mig/gi2"
    (instance / "ci0").mkdir(parents=True)
    (instance / "access").write_text("DeviceFileMinor: 21\nDeviceFileMode: 292\n")
    (instance / "ci0" / "access").write_text("DeviceFileMinor: 22\nDeviceFileMode: 292\n")
    return DeviceFiles(
        dev_root=dev,
        proc_root=tmp_path / "proc",
        driver_root=driver,
        host_driver_root=Path("/run/nvidia/driver"),
    )


def injection(files: DeviceFiles, **policy: str) -> Injection:
    return Injection(
        policies={GpuUuid(f"GPU-{index}"): Policy(**policy) for index in (0, 1)},  # type: ignore[arg-type]  # of texts only
        inventory=Inventory(gpus=(hardware(0), hardware(1))),
        files=files,
        modes=ModeRules(
            hami_library="/opt/libvgpu.so",
            pipes_of=lambda uuid: f"/run/mps/{uuid}/pipe",
            shared_memory="/run/mps/shm",
        ),
    )


def test_by_the_environment_a_container_gets_uuids_and_nothing_else(files: DeviceFiles) -> None:
    answer = injection(files).response(grant("0.5", 50, 1), LEDGER)
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    assert not answer.devices
    assert not answer.mounts
    assert not answer.cdi_devices


def test_by_cdi_it_gets_the_names_and_the_nvidia_runtime_keeps_out(files: DeviceFiles) -> None:
    """Else a runtime that reads the variable would bring the GPUs in a second time."""
    answer = injection(files, injection="cdi").response(grant("2x0.5", 50, 0, 1), LEDGER)
    assert [each.name for each in answer.cdi_devices] == [
        "gpuslice.dev/gpu=GPU-0",
        "gpuslice.dev/gpu=GPU-1",
    ]
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert answer.envs["GPUSLICE_GPU"] == "GPU-0,GPU-1"


def test_by_device_nodes_it_gets_those_of_its_gpu_and_the_control_nodes(
    files: DeviceFiles,
) -> None:
    answer = injection(files, injection="device-nodes").response(grant("0.5", 50, 1), LEDGER)
    expected = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia5"]
    assert [each.container_path for each in answer.devices] == expected
    assert [each.host_path for each in answer.devices] == expected
    assert {each.permissions for each in answer.devices} == {"rw"}


def test_a_mig_instance_is_opened_by_its_capability_files(files: DeviceFiles) -> None:
    instance = hardware(0, mig_parent=GpuUuid("GPU-x"), gpu_instance=2, compute_instance=0)
    assert files.of_gpu(instance) == (
        "/dev/nvidia4",
        "/dev/nvidia-caps/nvidia-cap21",
        "/dev/nvidia-caps/nvidia-cap22",
    )
    with pytest.raises(InjectionError, match="gi3"):
        files.of_gpu(dataclasses.replace(instance, gpu_instance=3))


def test_a_gpu_whose_device_file_is_unknown_is_refused_with_what_helps(files: DeviceFiles) -> None:
    blind = dataclasses.replace(
        injection(files, injection="device-nodes"),
        inventory=Inventory(gpus=(hardware(0, minor_number=None),)),
    )
    with pytest.raises(InjectionError, match="deviceInjection"):
        blind.response(grant("0.5", 50, 0), LEDGER)


def test_a_share_over_gpus_that_are_shared_in_different_ways_is_refused(
    files: DeviceFiles,
) -> None:
    mixed = dataclasses.replace(
        injection(files), policies={GpuUuid("GPU-0"): Policy(mode="hami-core")}
    )
    with pytest.raises(InjectionError, match="hami-core"):
        mixed.response(grant("2x0.5", 50, 0, 1), LEDGER)


# --- the CDI spec


def test_the_spec_names_each_gpu_and_what_all_need(files: DeviceFiles) -> None:
    spec = cdi.spec_of(Inventory(gpus=(hardware(0), hardware(1, minor_number=None))), files)
    assert spec["kind"] == "gpuslice.dev/gpu"
    assert spec["devices"] == [
        {"name": "GPU-0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia4"}]}}
    ]
    shared = spec["containerEdits"]
    assert shared["deviceNodes"] == [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}]
    assert [(each["hostPath"], each["containerPath"]) for each in shared["mounts"]] == [
        (f"/run/nvidia/driver/usr/lib64/{name}", f"/usr/lib64/{name}")
        for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    ]


def test_the_spec_is_written_whole_and_only_when_it_differs(tmp_path: Path) -> None:
    file = CdiFile(tmp_path / "cdi")
    assert file.write({"kind": "one"}) == ""
    first = file.path.stat()
    assert file.write({"kind": "one"}) == ""
    assert file.path.stat() == first
    file.path.unlink()
    assert file.write({"kind": "one"}) == ""
    assert file.write({"kind": "two"}) == ""
    assert json.loads(file.path.read_text()) == {"kind": "two"}
    assert file.path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in file.path.parent.iterdir()] == [file.path.name]
    file.remove()
    file.remove()
    assert not list(file.path.parent.iterdir())


def test_a_spec_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()
    file = CdiFile(tmp_path / "cdi")
    assert "can't be written" in file.write({})
    file.remove()


# --- modes


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        pytest.param("0.5", 50, id="half"),
        pytest.param("0.125", 12, id="rounded down"),
        pytest.param("0.005", 1, id="one at least"),
        pytest.param("1", 100, id="whole"),
        pytest.param("4000mi", 17, id="memory"),
        pytest.param("23034mi", 100, id="all memory"),
    ],
)
def test_a_share_in_whole_percent(share: str, expected: int) -> None:
    assert limits.percentage(grant(share, 1, 0).share, GPUS[0]) == expected


def test_shares_that_fit_together_are_never_more_than_all_of_it() -> None:
    third = Share(fraction=Fraction(333, 1000), memory_mib=None, devices=1)
    assert 3 * limits.percentage(third, GPUS[0]) <= 100


def test_mps_limits_memory_and_threads_and_brings_the_pipes(files: DeviceFiles) -> None:
    answer = injection(files, mode="mps").response(grant("0.5", 50, 1), LEDGER)
    assert answer.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=11517M"
    assert answer.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    pipes = answer.envs["CUDA_MPS_PIPE_DIRECTORY"]
    assert {each.container_path: each.host_path for each in answer.mounts} == {
        pipes: "/run/mps/GPU-1/pipe",
        "/dev/shm": "/run/mps/shm",
    }


def test_each_limit_of_mps_can_be_switched_off() -> None:
    found = limits.mps(
        grant("0.5", 50, 0),
        GPUS[:1],
        pipes="/p",
        shared_memory="/s",
        memory_limit=False,
        thread_limit=False,
    )
    assert list(found.environment) == ["CUDA_MPS_PIPE_DIRECTORY"]


def test_mps_refuses_a_share_of_several_gpus_with_the_reason(files: DeviceFiles) -> None:
    with pytest.raises(InjectionError, match="2 GPUs"):
        injection(files, mode="mps").response(grant("2x0.5", 50, 0, 1), LEDGER)


def test_hami_core_gets_the_library_and_a_limit_for_each_gpu(files: DeviceFiles) -> None:
    answer = injection(files, mode="hami-core").response(grant("2x0.5", 50, 0, 1), LEDGER)
    assert {
        key: value for key, value in answer.envs.items() if key.startswith(("CUDA_", "LD_"))
    } == {
        "LD_PRELOAD": limits.HAMI_LIBRARY,
        "CUDA_DEVICE_MEMORY_LIMIT": "11517m",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "11517m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "11517m",
        "CUDA_DEVICE_SM_LIMIT": "50",
    }
    (mount,) = answer.mounts
    assert (mount.host_path, mount.container_path, mount.read_only) == (
        "/opt/libvgpu.so",
        limits.HAMI_LIBRARY,
        True,
    )
