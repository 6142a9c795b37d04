# SPDX-License-Identifier: Apache-2.0
"""The GPUs of each node: from a file, served by the fake driver library, breakable at any time."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuslice.sim.nvml.driver_root import BuildError, DriverRoot, build_library
from gpuslice.sim.nvml.machine import MIB, Machine, MachineGpu

from .errors import HarnessError
from .paths import cache_dir

_KEYS = frozenset({"product", "memoryMiB", "reservedMiB", "count"})
_MAX_GPUS = 16
_PRODUCT = "NVIDIA L4"
_MEMORY_MIB = 23034
_RESERVED_MIB = 535


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """A node that is to be: its name and its GPUs."""

    name: str
    gpus: tuple[MachineGpu, ...] = ()


def stable_uuid(node: str, index: int) -> str:
    """The same GPU has the same UUID in every run, so that logs of two runs compare."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{node}.gpuslice.dev')}"


def gpu(
    node: str,
    index: int,
    *,
    product: str = _PRODUCT,
    memory_mib: int = _MEMORY_MIB,
    reserved_mib: int = _RESERVED_MIB,
) -> MachineGpu:
    """One GPU of a node.

    Args:
        node: the node's name, part of the UUID.
        index: NVML's index, from 0.
        product: as NVML says it.
        memory_mib: what can be sold, as in `GpuNode.spec.gpus[].memoryMiB`.
        reserved_mib: what the driver keeps for itself besides.
    """
    return MachineGpu(
        uuid=stable_uuid(node, index),
        product=product,
        total_bytes=(memory_mib + reserved_mib) * MIB,
        reserved_bytes=reserved_mib * MIB,
        pci_bus_id=f"00000000:{index + 1:02x}:00.0",
        minor_number=index,
    )


def plan(name: str, gpu_count: int = 2) -> NodePlan:
    """A node with that many L4 GPUs."""
    return NodePlan(name=name, gpus=tuple(gpu(name, index) for index in range(gpu_count)))


def read_plans(path: Path) -> tuple[NodePlan, ...]:
    """Read a file such as tests/cluster/gpus.yaml.

    Raises:
        HarnessError: it is no such file; says where and why.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as err:
        raise HarnessError(f"{path}: {err}") from err
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(nodes, dict) or not nodes:
        raise HarnessError(f"{path}: `nodes` must map node names to lists of GPUs")
    return tuple(
        NodePlan(name=str(name), gpus=_gpus(str(name), entries or [], f"{path}: nodes.{name}"))
        for name, entries in nodes.items()
    )


def _gpus(node: str, entries: Sequence[Mapping[str, Any]], where: str) -> tuple[MachineGpu, ...]:
    gpus: list[MachineGpu] = []
    for position, entry in enumerate(entries):
        here = f"{where}[{position}]"
        if not isinstance(entry, dict) or (unknown := set(entry) - _KEYS):
            wrong = f"unknown {sorted(unknown)}" if isinstance(entry, dict) else "not a mapping"
            raise HarnessError(f"{here}: {wrong}; known: {', '.join(sorted(_KEYS))}")
        count = entry.get("count", 1)
        if not isinstance(count, int) or not 1 <= count <= _MAX_GPUS - len(gpus):
            raise HarnessError(f"{here}.count: 1 to {_MAX_GPUS} GPUs per node, not {count!r}")
        first = len(gpus)
        gpus += [_gpu(node, first + offset, entry, here) for offset in range(count)]
    return tuple(gpus)


def _gpu(node: str, index: int, entry: Mapping[str, Any], here: str) -> MachineGpu:
    amounts = {}
    for key, default in (("memoryMiB", _MEMORY_MIB), ("reservedMiB", _RESERVED_MIB)):
        amounts[key] = entry.get(key, default)
        if not isinstance(amounts[key], int) or amounts[key] < 0:
            raise HarnessError(f"{here}.{key}: a whole number of MiB, not {amounts[key]!r}")
    return gpu(
        node,
        index,
        product=str(entry.get("product", _PRODUCT)),
        memory_mib=amounts["memoryMiB"],
        reserved_mib=amounts["reservedMiB"],
    )


class NodeGpus:
    """The driver of one node; `root` changes what it says, seen at the next NVML call."""

    def __init__(self, gpus: Sequence[MachineGpu], folder: Path) -> None:
        try:
            library = build_library(cache_dir() / "nvml")
        except BuildError as err:
            raise HarnessError(str(err)) from err
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.root = DriverRoot.lay_out(folder, Machine(gpus=tuple(gpus)), library=library)
        self.uuids = tuple(gpu.uuid for gpu in gpus)

    @property
    def count(self) -> int:
        return len(self.uuids)

    @property
    def driver_root(self) -> Path:
        return self.root.path
