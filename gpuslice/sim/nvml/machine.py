# SPDX-License-Identifier: Apache-2.0
"""The machine that the simulated NVML serves: values, and the text that the C library reads.

The text has one fact a line, a key and its values with spaces between; `#` begins a comment. Lines
before the first `gpu` are about the machine, then each belongs to the `gpu` or `mig` above it:

    driver 570.124.06               nvml 12.570.124.06              cuda 12080
    fail <function> <code> <ms>     event <serial> <uuid> <type> <data> <gi> <ci>
    gpu <uuid>                      in the order of NVML's indices
      product <text>                memory <total> <reserved>       (bytes)
      pci 00000000:3b:00.0          minor 0                         numa 0
      compute-mode 0                mig-mode <current> <pending>    capability 8 9
      utilization <gpu> <memory>    ecc <on> <corrected> <uncorrected>
      lost 1                        missing 1                       memory-na 1
      process <pid> <bytes>         fail <function> <code> <ms>
      mig <uuid>                    an instance of the GPU above
        profile 1g.10gb             memory <total> <reserved>       instance <gi> <ci>

A `fail` line makes one exported function (or all with a prefix: `nvmlDevice*`) wait some
milliseconds and answer an error code, or 0 for "as usual". Events are delivered once, to the event
sets made before their serial number appeared.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MIB: Final = 1024 * 1024
NOT_AVAILABLE: Final = 2**64 - 1
"""What NVML answers where it has no number, e.g. the memory of another container's process."""
WHOLE_GPU: Final = 2**32 - 1
"""The instance ids of an event or a process that is about no MIG instance."""


class MachineError(ValueError):
    """A text that describes no machine, or a GPU that a machine has not."""


class Answer(enum.IntEnum):
    """The NVML return codes that tests ask for."""

    SUCCESS = 0
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    LIB_RM_VERSION_MISMATCH = 18
    UNKNOWN = 999


class EventType(enum.IntFlag):
    """The kinds of NVML event that a device plugin registers for."""

    SINGLE_BIT_ECC = 0x1
    DOUBLE_BIT_ECC = 0x2
    XID = 0x8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One NVML function that misbehaves."""

    function: str
    """An exported name, e.g. ``nvmlDeviceGetMemoryInfo_v2``, or a prefix: ``nvmlDevice*``."""
    answer: int = Answer.SUCCESS
    delay_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event, delivered once to each event set that has its GPU registered."""

    serial: int
    """Larger than that of any event before it."""
    gpu: str
    """The physical GPU's UUID."""
    kind: EventType = EventType.XID
    data: int
    """The XID."""
    gpu_instance: int = WHOLE_GPU
    compute_instance: int = WHOLE_GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that uses a GPU."""

    pid: int
    used_bytes: int = NOT_AVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One instance of a GPU with MIG mode on."""

    uuid: str
    """Begins with ``MIG-``."""
    profile: str
    """E.g. ``1g.10gb``."""
    total_bytes: int
    reserved_bytes: int = 0
    gpu_instance: int
    compute_instance: int = 0
    memory_na: bool = False
    processes: tuple[Process, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGpu:
    """One physical GPU."""

    uuid: str
    product: str = "NVIDIA L4"
    total_bytes: int = 23569 * MIB
    reserved_bytes: int = 535 * MIB
    pci_bus_id: str = "00000000:3b:00.0"
    minor_number: int = 0
    numa_node: int = -1
    """-1: the machine doesn't say."""
    compute_mode: int = 0
    """0 default, 2 prohibited, 3 one process only. What NVML calls set is kept elsewhere."""
    mig_mode: int = 0
    mig_pending: int = 0
    capability: tuple[int, int] = (8, 9)
    """The CUDA compute capability; below 8 a GPU knows no MIG."""
    utilization_percent: tuple[int, int] = (0, 0)
    """Of the processors, of the memory's bandwidth."""
    ecc_enabled: bool = True
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    lost: bool = False
    """Fallen off the bus: counted, but every call about it says so."""
    missing: bool = False
    """Not found by the driver: not even counted by the next init."""
    memory_na: bool = False
    """Its memory can't be told (2^64-1), as on boards that share the CPU's."""
    processes: tuple[Process, ...] = ()
    instances: tuple[MigInstance, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """All that the simulated driver knows. The GPUs are in the order of their NVML index."""

    gpus: tuple[MachineGpu, ...] = ()
    driver_version: str = "570.124.06"
    nvml_version: str = "12.570.124.06"
    cuda_version: int = 12080
    faults: tuple[Fault, ...] = ()
    events: tuple[Event, ...] = ()

    def gpu(self, uuid: str) -> MachineGpu:
        """Return a physical GPU.

        Raises:
            MachineError: where the machine has none of that UUID.
        """
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise MachineError(f"no GPU {uuid} in this machine: {[gpu.uuid for gpu in self.gpus]}")

    def with_gpu(self, gpu: MachineGpu) -> Machine:
        """Put a GPU in the place of the one with its UUID, or after the last."""
        if any(other.uuid == gpu.uuid for other in self.gpus):
            gpus = tuple(gpu if other.uuid == gpu.uuid else other for other in self.gpus)
        else:
            gpus = (*self.gpus, gpu)
        return dataclasses.replace(self, gpus=gpus)

    def with_fault(self, fault: Fault, *, gpu: str | None = None) -> Machine:
        """Let a function fail for one GPU, or for the whole machine."""
        if gpu is None:
            return dataclasses.replace(self, faults=(*self.faults, fault))
        found = self.gpu(gpu)
        return self.with_gpu(dataclasses.replace(found, faults=(*found.faults, fault)))

    def healed(self) -> Machine:
        """Take all faults away; events stay, since they have been delivered."""
        gpus = tuple(
            dataclasses.replace(gpu, lost=False, missing=False, memory_na=False, faults=())
            for gpu in self.gpus
        )
        return dataclasses.replace(self, gpus=gpus, faults=())


def format_machine(machine: Machine) -> str:
    """Return the text that the C library reads."""
    lines = [
        f"driver {machine.driver_version}",
        f"nvml {machine.nvml_version}",
        f"cuda {machine.cuda_version}",
        *_fault_lines(machine.faults),
        *(
            f"event {event.serial} {event.gpu} {int(event.kind)} {event.data} "
            f"{event.gpu_instance} {event.compute_instance}"
            for event in machine.events
        ),
    ]
    for gpu in machine.gpus:
        lines += _gpu_lines(gpu)
    return "\n".join(lines) + "\n"


def _fault_lines(faults: tuple[Fault, ...]) -> Iterator[str]:
    return (f"fail {fault.function} {int(fault.answer)} {fault.delay_ms}" for fault in faults)


def _process_lines(processes: tuple[Process, ...]) -> Iterator[str]:
    return (f"process {process.pid} {process.used_bytes}" for process in processes)


def _gpu_lines(gpu: MachineGpu) -> Iterator[str]:
    yield f"gpu {gpu.uuid}"
    yield f"product {gpu.product}"
    yield f"memory {gpu.total_bytes} {gpu.reserved_bytes}"
    yield f"pci {gpu.pci_bus_id}"
    yield f"minor {gpu.minor_number}"
    yield f"numa {gpu.numa_node}"
    yield f"compute-mode {gpu.compute_mode}"
    yield f"mig-mode {gpu.mig_mode} {gpu.mig_pending}"
    yield "capability {} {}".format(*gpu.capability)
    yield "utilization {} {}".format(*gpu.utilization_percent)
    yield f"ecc {gpu.ecc_enabled:d} {gpu.ecc_corrected} {gpu.ecc_uncorrected}"
    yield f"lost {gpu.lost:d}"
    yield f"missing {gpu.missing:d}"
    yield f"memory-na {gpu.memory_na:d}"
    yield from _process_lines(gpu.processes)
    yield from _fault_lines(gpu.faults)
    for instance in gpu.instances:
        yield f"mig {instance.uuid}"
        yield f"profile {instance.profile}"
        yield f"memory {instance.total_bytes} {instance.reserved_bytes}"
        yield f"instance {instance.gpu_instance} {instance.compute_instance}"
        yield f"memory-na {instance.memory_na:d}"
        yield from _process_lines(instance.processes)
        yield from _fault_lines(instance.faults)
