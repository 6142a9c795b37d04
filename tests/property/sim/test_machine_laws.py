# SPDX-License-Identifier: Apache-2.0
"""A machine's text says all of it, and nonsense is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.sim.nvml.machine import (
    Event,
    EventType,
    Fault,
    Machine,
    MachineError,
    MachineGpu,
    MigInstance,
    Process,
    format_machine,
)
from gpuslice.sim.nvml.reading import parse_machine

words = st.text("abcXYZ019-_.", min_size=1, max_size=40)
texts = st.lists(words, min_size=1, max_size=2).map(" ".join)
uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
faults = st.builds(Fault, function=words, answer=st.integers(0, 999), delay_ms=uint32)
processes = st.builds(Process, pid=uint32, used_bytes=uint64)


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=3).map(tuple)


instances = st.builds(
    MigInstance,
    uuid=words,
    profile=words,
    total_bytes=uint64,
    reserved_bytes=uint64,
    gpu_instance=uint32,
    compute_instance=uint32,
    memory_na=st.booleans(),
    processes=some(processes),
    faults=some(faults),
)
machine_gpus = st.builds(
    MachineGpu,
    uuid=words,
    product=texts,
    total_bytes=uint64,
    reserved_bytes=uint64,
    numa_node=st.integers(-1, 255),
    minor_number=uint32,
    compute_mode=st.integers(0, 3),
    mig_mode=st.integers(0, 1),
    mig_pending=st.integers(0, 1),
    capability=st.tuples(st.integers(1, 12), st.integers(0, 9)),
    utilization_percent=st.tuples(st.integers(0, 100), st.integers(0, 100)),
    ecc_enabled=st.booleans(),
    ecc_corrected=uint64,
    ecc_uncorrected=uint64,
    lost=st.booleans(),
    missing=st.booleans(),
    memory_na=st.booleans(),
    processes=some(processes),
    instances=some(instances),
    faults=some(faults),
)
machines = st.builds(
    Machine,
    gpus=some(machine_gpus),
    driver_version=words,
    nvml_version=words,
    cuda_version=st.integers(0, 99999),
    faults=some(faults),
    events=some(
        st.builds(
            Event,
            serial=uint64,
            gpu=words,
            kind=st.sampled_from(EventType),
            data=uint64,
            gpu_instance=uint32,
            compute_instance=uint32,
        )
    ),
)


@given(machines)
def test_a_machine_is_read_back_as_it_was_written(machine: Machine) -> None:
    assert parse_machine(format_machine(machine)) == machine


@pytest.mark.parametrize(
    "text",
    [
        "driver 1\nnonsense 2\n",
        "gpu GPU-a\nmemory 1\n",
        "gpu GPU-a\nmemory a b\n",
        "mig MIG-a\n",
        "product NVIDIA L4\n",
        "fail nvmlInit\n",
        "gpu GPU-a\nprofile 1g.5gb\n",
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(MachineError):
        parse_machine(text)
