# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA driver's word on GPUs: the only module that imports pynvml.

A GPU that doesn't answer, or answers nonsense, never hides the others: what can't be read of it
becomes a reason. Only what concerns the driver as a whole is raised.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml

from deviceplugin.diagnosis import Xid
from deviceplugin.driver import LIBRARY, Cause, DriverError, find_library, identity, preload
from deviceplugin.inventory import (
    MIB,
    Gpu,
    GpuProcess,
    MigUse,
    Reading,
    Unreadable,
    for_sale,
)
from gpuslice.contract.names import GpuUuid

T = TypeVar("T")

_NOT_AVAILABLE: Final = 2**64 - 1
_WHOLE_GPU: Final = 2**32 - 1
_NOTHING_TO_TELL: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)
_NUMA_WORDS: Final = 4
"""64 NUMA nodes each."""


def _driver_error(doing: str, err: pynvml.NVMLError) -> DriverError:
    if err.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        advice = (
            "the driver was upgraded and this library is of the old version (or the other way "
            "round): restart this pod, and reboot the node if that doesn't help"
        )
        return DriverError(f"{doing}: {err}: {advice}", cause=Cause.MISMATCH)
    cause = Cause.CALL_FAILED
    if err.value in {pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}:
        cause = Cause.NO_DRIVER
    return DriverError(f"{doing}: {err}", cause=cause)


class Nvml:
    """The driver under one root. A process can load one library only, so it has one of these.

    Any thread may call; one waits for events while others read.
    """

    def __init__(self, driver_root: Path, *, mig: MigUse = MigUse.USE) -> None:
        self._driver_root = driver_root
        self._mig = mig
        self._lock = threading.RLock()
        self._library: ctypes.CDLL | None = None
        self._path = Path(LIBRARY)
        self._loaded: tuple[int, int] | None = None
        self._open = False

    def open(self) -> None:
        """Load the library and initialise it; do nothing if that is done.

        Raises:
            DriverError: where there is none, or it finds no driver of its version.
        """
        with self._lock:
            if self._open:
                return
            if self._library is None:
                self._path = find_library(self._driver_root)
                self._library = preload(self._path, loaded_before=pynvml.nvmlLib)
                self._loaded = identity(self._path)
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as err:
                raise _driver_error(f"{self._path} finds no usable driver", err) from err
            self._open = True

    def close(self) -> None:
        """Let go of the driver; handles and event sets end with it. The library stays loaded."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError as err:
                raise _driver_error("the driver can't be let go", err) from err

    @property
    def is_outdated(self) -> bool:
        """Whether another library lies there than the one that is loaded, which stays loaded."""
        with self._lock:
            if self._library is None:
                return False
            try:
                return identity(find_library(self._driver_root)) not in (None, self._loaded)
            except DriverError:
                return False

    def driver_version(self) -> str:
        """Return the driver's version; e.g. ``570.124.06``."""
        return str(self._ask("the driver's version", pynvml.nvmlSystemGetDriverVersion))

    def read(self) -> Reading:
        """Look at every GPU.

        Raises:
            DriverError: where not even the number of GPUs can be told.
        """
        with self._lock:
            count = self._ask("the number of GPUs", pynvml.nvmlDeviceGetCount)
            look = _Look(mig=self._mig)
            for index in range(count):
                look.at(index)
            return look.reading()

    def processes(self) -> tuple[GpuProcess, ...]:
        """Return the processes on all GPUs that answer, in the order of GPU and process id."""
        found: list[GpuProcess] = []
        with self._lock:
            for gpu in self.read().gpus:
                with contextlib.suppress(pynvml.NVMLError):
                    found += _processes_on(gpu.uuid)
        return tuple(sorted(found, key=lambda each: (each.gpu, each.pid)))

    def compute_mode(self, uuid: GpuUuid) -> int:
        """Return a GPU's compute mode: 0 default, 2 prohibited, 3 exclusive to one process."""
        return int(self._ask(f"the compute mode of {uuid}", _compute_mode, uuid))

    def set_compute_mode(self, uuid: GpuUuid, mode: int) -> None:
        """Set a GPU's compute mode, which takes root.

        Raises:
            DriverError: where the driver refuses.
        """
        self._ask(f"setting the compute mode of {uuid} to {mode}", _set_compute_mode, uuid, mode)

    def watch(self) -> Events:
        """Begin to listen for the XIDs of every GPU that is there and can tell them.

        Raises:
            DriverError: where the driver offers no events at all.
        """
        with self._lock:
            count = self._ask("the number of GPUs", pynvml.nvmlDeviceGetCount)
            return Events(self._ask("an event set", pynvml.nvmlEventSetCreate), count)

    def _ask(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            try:
                return call(*args)
            except pynvml.NVMLError as err:
                raise _driver_error(f"{self._path} can't tell {what}", err) from err


class Events:
    """One event set. Its thread owns it: no one else may close it or the driver meanwhile."""

    def __init__(self, event_set: Any, count: int) -> None:
        self._set = event_set
        self._uuids: dict[int | None, GpuUuid] = {}
        self.asked: frozenset[GpuUuid] = frozenset()
        self.deaf: dict[int, str] = {}
        """The indices of GPUs whose XIDs won't be heard, and why: polling alone watches them."""
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = GpuUuid(pynvml.nvmlDeviceGetUUID(handle))
                self.asked |= {uuid}
                wanted = pynvml.nvmlEventTypeXidCriticalError
                if not pynvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted:
                    self.deaf[index] = "no XID events"
                    continue
                pynvml.nvmlDeviceRegisterEvents(handle, wanted, event_set)
            except pynvml.NVMLError as err:
                self.deaf[index] = str(err)
            else:
                # By its address, since a lost GPU can't be asked for its UUID any more.
                self._uuids[_address(handle)] = uuid

    def wait(self, timeout_seconds: float) -> Xid | None:
        """Return the next XID, or None when there was none in time, or one of no known GPU.

        Raises:
            DriverError: where the driver can't wait; asking again at once would be a hot loop.
        """
        try:
            event = pynvml.nvmlEventSetWait_v2(self._set, round(timeout_seconds * 1000))
        except pynvml.NVMLError as err:
            if err.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise _driver_error("waiting for XIDs", err) from err
        uuid = self._uuids.get(_address(event.device))
        if uuid is None or event.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return None
        return Xid(
            number=event.eventData,
            gpu=uuid,
            gpu_instance=_instance_id(event.gpuInstanceId),
            compute_instance=_instance_id(event.computeInstanceId),
        )

    def close(self) -> None:
        """Free the event set."""
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(self._set)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _instance_id(number: int) -> int | None:
    return None if number == _WHOLE_GPU else number


def _maybe(call: Callable[..., T], *args: Any) -> T | None:
    """Return what a call answers, or None where this GPU or driver has no such thing to tell.

    Any other refusal is passed on: taken for "has none", a GPU whose MIG mode can't be read at the
    moment would be sold whole, beside its instances.
    """
    try:
        return call(*args)
    except pynvml.NVMLError as err:
        if err.value not in _NOTHING_TO_TELL:
            raise
        return None


def _processes_on(uuid: GpuUuid) -> tuple[GpuProcess, ...]:
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    return tuple(
        GpuProcess(gpu=uuid, pid=each.pid, used_mib=_mib(each.usedGpuMemory))
        for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    )


def _mib(used_bytes: int | None) -> int | None:
    return None if used_bytes in {None, _NOT_AVAILABLE} else used_bytes // MIB


def _compute_mode(uuid: GpuUuid) -> int:
    return int(pynvml.nvmlDeviceGetComputeMode(pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())))


def _set_compute_mode(uuid: GpuUuid, mode: int) -> None:
    pynvml.nvmlDeviceSetComputeMode(pynvml.nvmlDeviceGetHandleByUUID(uuid.encode()), mode)


class _UntellableError(Exception):
    """A GPU answers, but not what is needed to sell it."""


class _Look:
    """One look at the hardware, as it comes together."""

    def __init__(self, *, mig: MigUse) -> None:
        self._mig = mig
        self._gpus: list[Gpu] = []
        self._unreadable: list[Unreadable] = []
        self._partitioned: set[GpuUuid] = set()
        self._errors: dict[GpuUuid, int] = {}
        self._notes: list[str] = []

    def reading(self) -> Reading:
        return Reading(
            gpus=tuple(self._gpus),
            unreadable=tuple(self._unreadable),
            partitioned=frozenset(self._partitioned),
            uncorrected_errors=self._errors,
            notes=tuple(self._notes),
        )

    def at(self, index: int) -> None:
        """Look at the GPU of an NVML index."""
        uuid: GpuUuid | None = None
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = GpuUuid(pynvml.nvmlDeviceGetUUID(handle))
            self._take(handle, _identity(handle, uuid, index))
        except (pynvml.NVMLError, _UntellableError) as err:
            self._leave_out(index, uuid, err)

    def _leave_out(self, index: int, uuid: GpuUuid | None, err: Exception) -> None:
        answers = isinstance(err, _UntellableError)
        self._unreadable.append(
            Unreadable(index=index, uuid=uuid, reason=str(err), answers=answers)
        )

    def _take(self, handle: Any, gpu: Gpu) -> None:
        errors = _maybe(
            pynvml.nvmlDeviceGetTotalEccErrors,
            handle,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        )
        if errors is not None:
            self._errors[gpu.uuid] = errors
        current, _pending = _maybe(pynvml.nvmlDeviceGetMigMode, handle) or (0, 0)
        if current != pynvml.NVML_DEVICE_MIG_ENABLE:
            self._gpus.append(self._with_memory(handle, gpu))
            return
        self._partitioned.add(gpu.uuid)
        if self._mig is MigUse.USE:
            for number in range(_maybe(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
                self._take_instance(handle, gpu, number)

    def _take_instance(self, parent_handle: Any, parent: Gpu, number: int) -> None:
        # Not every number up to the most has an instance.
        handle = _maybe(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, parent_handle, number)
        if handle is None:
            return
        uuid: GpuUuid | None = None
        try:
            uuid = GpuUuid(pynvml.nvmlDeviceGetUUID(handle))
            instance = dataclasses.replace(
                parent,
                uuid=uuid,
                product=_instance_product(handle, parent),
                mig_parent=parent.uuid,
                gpu_instance=_maybe(pynvml.nvmlDeviceGetGpuInstanceId, handle),
                compute_instance=_maybe(pynvml.nvmlDeviceGetComputeInstanceId, handle),
            )
            self._gpus.append(self._with_memory(handle, instance))
        except (pynvml.NVMLError, _UntellableError) as err:
            self._leave_out(parent.index, uuid, err)

    def _with_memory(self, handle: Any, gpu: Gpu) -> Gpu:
        memory = _maybe(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        if memory is None:
            # The older call counts the driver's reserve as used, and can't tell it from what
            # programs use at the moment: so all is sold, and the operator told.
            memory = _maybe(pynvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is None or memory.total in {0, _NOT_AVAILABLE}:
            raise _UntellableError("the driver can't tell its memory")
        reserved = getattr(memory, "reserved", _NOT_AVAILABLE)
        if reserved >= memory.total:
            self._notes.append(f"{gpu.uuid}: the driver can't tell its reserve: all is sold")
            reserved = 0
        memory_mib, reserved_mib = for_sale(memory.total, reserved)
        if memory_mib == 0:
            raise _UntellableError(f"it has no memory for sale: {memory.total} bytes in all")
        return dataclasses.replace(gpu, memory_mib=memory_mib, reserved_mib=reserved_mib)


def _identity(handle: Any, uuid: GpuUuid, index: int) -> Gpu:
    pci = _maybe(pynvml.nvmlDeviceGetPciInfo, handle)
    return Gpu(
        uuid=uuid,
        index=index,
        product=_maybe(pynvml.nvmlDeviceGetName, handle) or "unknown GPU",
        memory_mib=0,
        numa_node=_numa_node(handle),
        minor_number=_maybe(pynvml.nvmlDeviceGetMinorNumber, handle),
        pci_bus_id="" if pci is None else str(pci.busId),
    )


def _numa_node(handle: Any) -> int | None:
    # Not nvmlDeviceGetNumaNodeId: that is about GPUs whose memory is a NUMA node of its own.
    words = _maybe(
        pynvml.nvmlDeviceGetMemoryAffinity, handle, _NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE
    )
    nodes = sum(word << (64 * place) for place, word in enumerate(words or ()))
    return nodes.bit_length() - 1 if nodes.bit_count() == 1 else None


def _instance_product(handle: Any, parent: Gpu) -> str:
    name = _maybe(pynvml.nvmlDeviceGetName, handle) or ""
    if " MIG " in name:
        return str(name)
    # Older drivers call an instance as they call its parent.
    attributes = _maybe(pynvml.nvmlDeviceGetAttributes_v2, handle)
    if attributes is None:
        return f"{parent.product} MIG"
    gib = -(-attributes.memorySizeMB // 1024)
    return f"{parent.product} MIG {attributes.gpuInstanceSliceCount}g.{gib}gb"
