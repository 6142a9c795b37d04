# SPDX-License-Identifier: Apache-2.0
"""What GPUs a node has: what one look at the hardware found, and what is known from all looks.

A GPU that was once known stays known: its tokens must not vanish from kubelet while a pod may hold
some. Hardware facts stay here; placement has its own, smaller `Gpu` in `gpuslice.contract.ledger`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from gpuslice.contract import ledger
from gpuslice.contract.names import GpuUuid
from gpuslice.contract.slices import SliceRule

MIB: Final = 1024 * 1024

GONE: Final = "the driver no longer finds it"
MIG_TURNED_ON: Final = "MIG mode was turned on"
MIG_INSTANCE_GONE: Final = "its MIG instance no longer exists"


class MigUse(enum.StrEnum):
    """What becomes of a GPU with MIG mode on."""

    USE = "use"
    """Its instances are GPUs of their own."""
    SKIP = "skip"
    """It is left to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that uses a GPU, by its id in the host's namespace."""

    gpu: GpuUuid
    pid: int
    used_mib: int | None
    """Rounded down; None where the driver doesn't tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU or MIG instance that can be sold."""

    uuid: GpuUuid
    index: int
    """NVML's, or its parent's for a MIG instance: for people. It changes; the UUID doesn't."""
    product: str
    """E.g. ``NVIDIA L4`` or ``NVIDIA A100-SXM4-40GB MIG 3g.20gb``."""
    memory_mib: int
    """For sale: see `for_sale`."""
    reserved_mib: int = 0
    """The driver's, not for sale."""
    numa_node: int | None = None
    minor_number: int | None = None
    """Of ``/dev/nvidia<minor>``; a MIG instance has its parent's."""
    pci_bus_id: str = ""
    """E.g. ``00000000:3B:00.0``; a MIG instance has its parent's."""
    mig_parent: GpuUuid | None = None
    gpu_instance: int | None = None
    """MIG's ids, which events and device nodes are told apart by."""
    compute_instance: int | None = None
    healthy: bool = True
    reason: str = ""
    """Why it is not healthy; e.g. ``XID 79``."""
    retired: bool = False
    """It was reconfigured away, and can be forgotten once no pod has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A GPU that is there, but can't be sold, because it doesn't answer."""

    index: int
    uuid: GpuUuid | None
    """Not known of a GPU that was lost before it could be asked."""
    reason: str
    answers: bool = False
    """It is well, but has not what it takes to be sold: opening the driver anew won't help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one look at the hardware found."""

    gpus: tuple[Gpu, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    partitioned: frozenset[GpuUuid] = frozenset()
    """GPUs with MIG mode on: sold as their instances, or not at all."""
    uncorrected_errors: Mapping[GpuUuid, int] = dataclasses.field(default_factory=dict)
    """ECC errors since the driver was loaded, of physical GPUs that count them."""
    notes: tuple[str, ...] = ()
    """What an operator should know; e.g. that a driver can't tell its reserve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All GPUs known, in the order of index, parent first, and UUID."""

    gpus: tuple[Gpu, ...] = ()

    def find(self, uuid: str) -> Gpu | None:
        """Return the GPU of that UUID, None where none is known."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


def for_sale(total_bytes: int, reserved_bytes: int) -> tuple[int, int]:
    """Return the MiB of a GPU that can be sold, and those that can't.

    Args:
        total_bytes: NVML's total, above zero.
        reserved_bytes: the driver's part of it.

    Returns:
        floor((total - reserved) / MiB), and the rest of floor(total / MiB): a started MiB counts
        as the driver's.
    """
    memory_mib = max(0, total_bytes - reserved_bytes) // MIB
    return memory_mib, total_bytes // MIB - memory_mib


def merge(known: Inventory, reading: Reading) -> Inventory:
    """Return what is known after one more look.

    Every GPU of the reading is there as it was read, and healthy as far as reading can tell; every
    other one that was known stays with the facts of its last good reading, unhealthy.
    """
    read = {gpu.uuid: gpu for gpu in reading.gpus}
    silent = {each.uuid: each.reason for each in reading.unreadable if each.uuid is not None}
    nameless = next((each.reason for each in reading.unreadable if each.uuid is None), "")
    kept = [
        _missed(gpu, reading, silent=silent, otherwise=nameless or GONE)
        for gpu in known.gpus
        if gpu.uuid not in read
    ]
    return Inventory(gpus=_sorted([*read.values(), *kept]))


def _missed(gpu: Gpu, reading: Reading, *, silent: Mapping[GpuUuid, str], otherwise: str) -> Gpu:
    retired = False
    if gpu.uuid in silent:
        reason = silent[gpu.uuid]
    elif gpu.mig_parent is not None and gpu.mig_parent in silent:
        # The look broke off on its parent: that its instance wasn't seen says nothing.
        reason = silent[gpu.mig_parent]
    elif gpu.uuid in reading.partitioned:
        reason, retired = MIG_TURNED_ON, True
    elif gpu.mig_parent is not None and _answers(gpu.mig_parent, reading):
        reason, retired = MIG_INSTANCE_GONE, True
    else:
        # A lost GPU can't say which one it is: it must be one of those that didn't answer.
        reason = otherwise
    return dataclasses.replace(gpu, healthy=False, reason=reason, retired=retired)


def lacks_gpus(known: Inventory, reading: Reading) -> bool:
    """Whether a GPU is missing that may show up when the driver is opened anew."""
    if not reading.gpus and not reading.partitioned and not reading.unreadable:
        return True
    well = {each.uuid for each in reading.unreadable if each.answers}
    return any(not each.answers for each in reading.unreadable) or any(
        not gpu.healthy and not gpu.retired and gpu.uuid not in well for gpu in known.gpus
    )


def _answers(uuid: GpuUuid, reading: Reading) -> bool:
    return uuid in reading.partitioned or any(gpu.uuid == uuid for gpu in reading.gpus)


def _sorted(gpus: list[Gpu]) -> tuple[Gpu, ...]:
    def key(gpu: Gpu) -> tuple[int, int, int, str]:
        instance = -1 if gpu.gpu_instance is None else gpu.gpu_instance
        compute = -1 if gpu.compute_instance is None else gpu.compute_instance
        return gpu.index, instance, compute, gpu.uuid

    return tuple(sorted(gpus, key=key))


def with_reasons(inventory: Inventory, reasons: Mapping[GpuUuid, str]) -> Inventory:
    """Mark GPUs unhealthy, each with its reason; those with no reason stay as they are."""
    gpus = tuple(
        dataclasses.replace(gpu, healthy=False, reason=reasons[gpu.uuid])
        if gpu.uuid in reasons
        else gpu
        for gpu in inventory.gpus
    )
    return Inventory(gpus=gpus)


def forget_retired(inventory: Inventory, *, claimed: AbstractSet[GpuUuid]) -> Inventory:
    """Drop the GPUs that MIG reconfigured away, but for those of which something is claimed."""
    gpus = tuple(gpu for gpu in inventory.gpus if not gpu.retired or gpu.uuid in claimed)
    return Inventory(gpus=gpus)


# --- to the ledger, and back


def ledger_gpus(inventory: Inventory, rule: SliceRule) -> tuple[ledger.Gpu, ...]:
    """Return the GPUs as placement sees them."""
    return tuple(
        ledger.Gpu(
            uuid=gpu.uuid,
            index=gpu.index,
            product=gpu.product,
            memory_mib=gpu.memory_mib,
            slices=rule.slices_of_gpu(gpu.memory_mib),
            healthy=gpu.healthy,
            reason=gpu.reason,
        )
        for gpu in inventory.gpus
    )


def spec_of(inventory: Inventory, rule: SliceRule, *, mode: str) -> dict[str, Any]:
    """Return the spec of this node's `GpuNode` object.

    Args:
        inventory: what is known of the node's GPUs.
        rule: how they are cut.
        mode: the sharing mode; e.g. ``time-slicing``.
    """
    return {
        "mode": mode,
        "sliceBy": rule.slice_by.value,
        "gpus": [_item(gpu, rule) for gpu in inventory.gpus],
    }


def _item(gpu: Gpu, rule: SliceRule) -> dict[str, Any]:
    item: dict[str, Any] = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "product": gpu.product,
        "memoryMiB": gpu.memory_mib,
        "reservedMiB": gpu.reserved_mib,
        "slices": rule.slices_of_gpu(gpu.memory_mib),
        "healthy": gpu.healthy,
        "reason": gpu.reason,
    }
    if gpu.numa_node is not None:
        item["numaNode"] = gpu.numa_node
    if gpu.mig_parent is not None:
        item["migParent"] = gpu.mig_parent
    return item


def inventory_of(spec: Mapping[str, Any]) -> Inventory:
    """Return what a `GpuNode` spec knew: where a restarted agent begins, before its first look.

    Device nodes and MIG ids aren't in the spec. A GPU that can't be read has none to give anyway.
    """
    gpus = [
        Gpu(
            uuid=GpuUuid(item["uuid"]),
            index=item["index"],
            product=item.get("product", ""),
            memory_mib=item["memoryMiB"],
            reserved_mib=item.get("reservedMiB", 0),
            numa_node=item.get("numaNode"),
            mig_parent=GpuUuid(item["migParent"]) if "migParent" in item else None,
            healthy=item.get("healthy", True),
            reason=item.get("reason", ""),
        )
        for item in spec.get("gpus") or ()
    ]
    return Inventory(gpus=_sorted(gpus))
