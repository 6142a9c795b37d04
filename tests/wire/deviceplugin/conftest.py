# SPDX-License-Identifier: Apache-2.0
"""One simulated driver a test process: the dynamic linker loads libnvidia-ml.so.1 only once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.nvml import Nvml
from gpuslice.sim.nvml.driver_root import DriverRoot, build_library
from gpuslice.sim.nvml.machine import MIB, Machine, MachineGpu, MigInstance, Process

A100 = "NVIDIA A100-SXM4-40GB"


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml-build"))


@pytest.fixture(scope="session")
def the_only_root(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> DriverRoot:
    path = tmp_path_factory.mktemp("driver-root")
    return DriverRoot.lay_out(path, Machine(), library=nvml_library)


@pytest.fixture
def machine() -> Machine:
    """Three unlike GPUs, the last of them cut by MIG."""
    return Machine(
        gpus=(
            MachineGpu(
                uuid="GPU-l4",
                numa_node=1,
                pci_bus_id="00000000:3b:00.0",
                minor_number=2,
                processes=(Process(pid=4711, used_bytes=2 * MIB + 1), Process(pid=4712)),
            ),
            MachineGpu(
                uuid="GPU-t4",
                product="Tesla T4",
                total_bytes=16106127360,
                reserved_bytes=446 * MIB + 5,
                capability=(7, 5),
                pci_bus_id="00000000:86:00.0",
                minor_number=0,
            ),
            MachineGpu(
                uuid="GPU-a100",
                product=A100,
                total_bytes=40960 * MIB,
                reserved_bytes=571 * MIB,
                capability=(8, 0),
                mig_mode=1,
                mig_pending=1,
                pci_bus_id="00000001:af:00.0",
                minor_number=1,
                instances=(
                    MigInstance(
                        uuid="MIG-three",
                        profile="3g.20gb",
                        total_bytes=19968 * MIB,
                        reserved_bytes=MIB // 2,
                        gpu_instance=2,
                        processes=(Process(pid=99, used_bytes=MIB),),
                    ),
                    MigInstance(
                        uuid="MIG-one",
                        profile="1g.5gb",
                        total_bytes=4864 * MIB,
                        gpu_instance=9,
                    ),
                ),
            ),
        )
    )


@pytest.fixture
def driver_root(the_only_root: DriverRoot, machine: Machine) -> DriverRoot:
    """The process's driver root, with the machine as new."""
    the_only_root.machine_file.with_name(f"{the_only_root.machine_file.name}.state").unlink(
        missing_ok=True
    )
    the_only_root.write(machine)
    return the_only_root


@pytest.fixture
def nvml(driver_root: DriverRoot) -> Iterator[Nvml]:
    nvml = Nvml(driver_root.path)
    nvml.open()
    yield nvml
    nvml.close()
