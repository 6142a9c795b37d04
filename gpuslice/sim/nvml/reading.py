# SPDX-License-Identifier: Apache-2.0
"""Read a machine's text back, so that a fault can be put into a machine that others wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuslice.sim.nvml.machine import (
    Event,
    EventType,
    Fault,
    Machine,
    MachineError,
    MachineGpu,
    MigInstance,
    Process,
)

Fields = dict[str, Any]


def _text(name: str) -> Callable[[str], Fields]:
    return lambda value: {name: value}


def _numbers(*names: str) -> Callable[[str], Fields]:
    return lambda value: dict(zip(names, map(int, value.split()), strict=True))


def _flag(name: str) -> Callable[[str], Fields]:
    return lambda value: {name: bool(int(value))}


def _pair(name: str) -> Callable[[str], Fields]:
    def read(value: str) -> Fields:
        first, second = map(int, value.split())
        return {name: (first, second)}

    return read


def _ecc(value: str) -> Fields:
    enabled, corrected, uncorrected = map(int, value.split())
    return {
        "ecc_enabled": bool(enabled),
        "ecc_corrected": corrected,
        "ecc_uncorrected": uncorrected,
    }


def _fault(value: str) -> Fault:
    function, answer, delay_ms = value.split()
    return Fault(function=function, answer=int(answer), delay_ms=int(delay_ms))


def _process(value: str) -> Process:
    pid, used_bytes = map(int, value.split())
    return Process(pid=pid, used_bytes=used_bytes)


def _event(value: str) -> Event:
    serial, gpu, kind, data, gpu_instance, compute_instance = value.split()
    return Event(
        serial=int(serial),
        gpu=gpu,
        kind=EventType(int(kind)),
        data=int(data),
        gpu_instance=int(gpu_instance),
        compute_instance=int(compute_instance),
    )


_MACHINE_LINES: Final[Mapping[str, Callable[[str], Fields]]] = {
    "driver": _text("driver_version"),
    "nvml": _text("nvml_version"),
    "cuda": _numbers("cuda_version"),
}
_DEVICE_LINES: Final[Mapping[str, Callable[[str], Fields]]] = {
    "product": _text("product"),
    "profile": _text("profile"),
    "memory": _numbers("total_bytes", "reserved_bytes"),
    "pci": _text("pci_bus_id"),
    "minor": _numbers("minor_number"),
    "numa": _numbers("numa_node"),
    "compute-mode": _numbers("compute_mode"),
    "mig-mode": _numbers("mig_mode", "mig_pending"),
    "capability": _pair("capability"),
    "utilization": _pair("utilization_percent"),
    "ecc": _ecc,
    "lost": _flag("lost"),
    "missing": _flag("missing"),
    "memory-na": _flag("memory_na"),
    "instance": _numbers("gpu_instance", "compute_instance"),
}
# Lines that may come more than once, and the field that collects them.
_LIST_LINES: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "fail": ("faults", _fault),
    "process": ("processes", _process),
    "event": ("events", _event),
}


def parse_machine(text: str) -> Machine:
    """Return the machine that a text describes: the inverse of `format_machine`.

    Raises:
        MachineError: with the number of the first line that makes no sense.
    """
    machine: Fields = {}
    gpus: list[Fields] = []
    here = machine
    for number, line in enumerate(text.splitlines(), start=1):
        key, _, value = line.strip().partition(" ")
        if not key or key.startswith("#"):
            continue
        try:
            if key == "gpu":
                here = {"uuid": value, "instances": []}
                gpus.append(here)
            elif key == "mig":
                here = {"uuid": value}
                gpus[-1]["instances"].append(here)
            elif key in _LIST_LINES:
                field, read = _LIST_LINES[key]
                owner = machine if key == "event" else here
                owner[field] = (*owner.get(field, ()), read(value))
            else:
                here.update((_MACHINE_LINES if here is machine else _DEVICE_LINES)[key](value))
        except (KeyError, IndexError, ValueError) as err:
            raise MachineError(f"line {number} is not understood: {line!r}") from err
    try:
        return Machine(**machine, gpus=tuple(_gpu(fields) for fields in gpus))
    except TypeError as err:
        raise MachineError(f"a GPU lacks a line, or has one of another kind: {err}") from err


def _gpu(fields: Fields) -> MachineGpu:
    instances = tuple(MigInstance(**instance) for instance in fields["instances"])
    return MachineGpu(**{**fields, "instances": instances})
