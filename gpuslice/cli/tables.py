# SPDX-License-Identifier: Apache-2.0
"""Tables: objects of the cluster as rows of text, in the manner of kubectl."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gpuslice.contract import gpunode, names, pods
from gpuslice.contract.ledger import Claim, Part

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns and rows of text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Return aligned lines, each without trailing space."""
        lines = (self.columns, *self.rows)
        widths = [max(len(line[each]) for line in lines) for each in range(len(self.columns))]
        return "\n".join(
            "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )


_Cell = Callable[[Json, datetime], str]


def age(item: Json, now: datetime) -> str:
    """Return how long ago an object was created; e.g. ``12s``, ``5m``, ``3h``, ``9d``."""
    created = pods.meta_of(item).get("creationTimestamp")
    if not isinstance(created, str):
        return "<unknown>"
    seconds = max(0, int((now - datetime.fromisoformat(created)).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def status(pod: Json) -> str:
    """Return the one word that says how a pod is; e.g. ``Running``, ``Terminating``."""
    about = pod.get("status") or {}
    if pods.meta_of(pod).get("deletionTimestamp"):
        return "Terminating"
    return str(about.get("reason") or about.get("phase") or "Pending")


def _ready(pod: Json) -> str:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    total = len(pods.spec_of(pod).get("containers") or ())
    return f"{sum(bool(each.get('ready')) for each in statuses)}/{total}"


def _annotation(key: str) -> _Cell:
    return lambda item, _: pods.annotations_of(item).get(key, "-")


def _summary(key: str) -> _Cell:
    return lambda item, _: str(((item.get("status") or {}).get("summary") or {}).get(key, "-"))


def _name(item: Json, _: datetime) -> str:
    return str(pods.meta_of(item).get("name"))


def _node_status(node: Json, _: datetime) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    closed = ",SchedulingDisabled" if pods.spec_of(node).get("unschedulable") else ""
    return ("Ready" if ready else "NotReady") + closed


def _allocatable(prefix: str) -> _Cell:
    def cell(node: Json, _: datetime) -> str:
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        found = {
            key.removeprefix(names.FIT_PREFIX): value
            for key, value in sorted(allocatable.items())
            if key.startswith(prefix)
        }
        if prefix != names.FIT_PREFIX:
            return next(iter(found.values()), "-")
        return " ".join(f"{key}:{value}" for key, value in found.items()) or "-"

    return cell


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    narrow: Mapping[str, _Cell]
    wide: Mapping[str, _Cell]


_LAYOUTS: Final[Mapping[str, _Layout]] = {
    "Pod": _Layout(
        narrow={
            "NAME": _name,
            "READY": lambda pod, _: _ready(pod),
            "STATUS": lambda pod, _: status(pod),
            "AGE": age,
            "SHARE": lambda pod, _: pods.labels_of(pod).get(names.SHARE_LABEL, "-"),
            "NODE": lambda pod, _: pods.node_name(pod) or "-",
        },
        wide={
            "GPU": _annotation(names.GPU_ANNOTATION),
            "MIB": _annotation(names.MEMORY_MIB_ANNOTATION),
            "SLICES": _annotation(names.SLICES_ANNOTATION),
        },
    ),
    "Node": _Layout(
        narrow={
            "NAME": _name,
            "STATUS": _node_status,
            "AGE": age,
            "GPU-SLICES": _allocatable(names.SLICE_RESOURCE),
        },
        wide={"FITS": _allocatable(names.FIT_PREFIX)},
    ),
    names.GPU_NODE_KIND: _Layout(
        narrow={
            "NAME": _name,
            "GPUS": _summary("gpus"),
            "SLICES": _summary("slices"),
            "CLAIMED": _summary("claimed"),
            "LARGEST FREE": _summary("largestFree"),
            "HEALTH": _summary("health"),
            "AGE": age,
        },
        wide={},
    ),
    names.GPU_SHARE_KIND: _Layout(
        narrow={
            "NAME": _name,
            "SLICES": lambda share, _: str(pods.spec_of(share).get("slices", "-")),
            "AGE": age,
        },
        wide={},
    ),
}
_OTHERS: Final = _Layout(narrow={"NAME": _name, "AGE": age}, wide={})


def table_of(kind: str, items: Sequence[Json], *, now: datetime, wide: bool = False) -> Table:
    """Return objects of one kind as a table, in the order of their names."""
    layout = _LAYOUTS.get(kind, _OTHERS)
    cells = {**layout.narrow, **(layout.wide if wide else {})}
    ordered = sorted(items, key=lambda item: _name(item, now))
    return Table(
        columns=tuple(cells),
        rows=tuple(tuple(cell(item, now) for cell in cells.values()) for item in ordered),
    )


def claims_table(gpu_nodes: Sequence[Json]) -> Table:
    """Return the ledgers as a table: a line for each claim's part, and one for an empty GPU."""
    rows: list[tuple[str, ...]] = []
    for ledger in sorted(map(gpunode.ledger_of, gpu_nodes), key=lambda each: each.node):
        for gpu in ledger.gpus:
            about = (str(ledger.node), str(gpu.index), str(gpu.uuid))
            free = f"{ledger.free_mib(gpu)} of {gpu.memory_mib}"
            parts = [
                (*about, *_claimed(claim, part), free)
                for claim in ledger.claims
                for part in claim.shape
                if part.gpu == gpu.uuid
            ]
            rows += sorted(parts) or [(*about, "-", "-", "0", "0", "-", free)]
    return Table(
        columns=("NODE", "GPU", "UUID", "POD", "SHARE", "MIB", "SLICES", "STATE", "FREE MIB"),
        rows=tuple(rows),
    )


def _claimed(claim: Claim, part: Part) -> tuple[str, ...]:
    amounts = (str(part.memory_mib), str(part.slices))
    return (str(claim.pod), str(claim.share), *amounts, claim.state.value)
