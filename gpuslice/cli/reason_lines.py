# SPDX-License-Identifier: Apache-2.0
"""Reasons in words: what `gpuslice explain pod` prints."""

from __future__ import annotations

from collections.abc import Iterator

from gpuslice.cli.reasons import Elsewhere, NodeRoom, Placed, Reason, Seat, Waiting
from gpuslice.cli.tables import Table


def lines_of(reason: Reason) -> list[str]:
    """Return a reason as lines for a terminal."""
    match reason:
        case Waiting():
            return list(_waiting(reason))
        case Placed():
            return list(_placed(reason))
        case Elsewhere():
            return [f"{reason.pod} {reason.why}"]


def _waiting(reason: Waiting) -> Iterator[str]:
    yield f"{reason.pod} is Pending: it asks for {reason.share}, {_each(reason)}"
    yield f"  the scheduler says: {reason.scheduler_words or '(nothing yet)'}"
    yield f"  the ledger says: {verdict(reason)}"
    rows = tuple(
        (room.node, str(room.more), _largest(room), "; ".join(_notes(room)) or "-")
        for room in reason.nodes
    )
    columns = ("NODE", "SUCH SHARES FIT", "LARGEST FREE", "NOTES")
    if rows:
        yield from (f"  {line}" for line in str(Table(columns=columns, rows=rows)).splitlines())


def _each(reason: Waiting) -> str:
    if reason.share.devices == 1:
        return f"{reason.needs} of one GPU"
    return f"{reason.needs} of each of {reason.share.devices} GPUs of one node"


def _largest(room: NodeRoom) -> str:
    if room.largest_free == f"{room.largest_free_mib}mi":
        return f"{room.largest_free_mib} MiB"
    return f"{room.largest_free} ({room.largest_free_mib} MiB)"


def verdict(reason: Waiting) -> str:
    """Return in one phrase whether the share fits anywhere now."""
    if not reason.nodes:
        return "no node has a device plugin of gpuslice yet"
    if reason.more:
        where = ", ".join(room.node for room in reason.nodes if room.more)
        return (
            f"there is room on {where}: the scheduler tries again within seconds, unless the pod "
            "asks for something else that is missing there"
        )
    if reason.share.devices == 1:
        return "no single GPU has that much free"
    return f"no node has {reason.share.devices} GPUs with that much free"


def _notes(room: NodeRoom) -> Iterator[str]:
    if not room.serving:
        yield "its device plugin is not serving"
    for gpu in room.closed:
        yield f"{gpu.uuid} {gpu.why}"
    if room.leaving:
        yield f"leaving: {', '.join(map(str, room.leaving))}"
    if room.held_back_by is not None:
        yield f"waits until {room.held_back_by} has its tokens"


def _placed(reason: Placed) -> Iterator[str]:
    yield (
        f"{reason.pod} has {reason.share} on node {reason.node} "
        f"(pod {reason.phase}, claim {reason.state.value})"
    )
    for seat in reason.seats:
        yield from _seat(seat)


def _seat(seat: Seat) -> Iterator[str]:
    gpu = seat.gpu
    yield f"  GPU {gpu.index} {gpu.uuid} ({gpu.product or 'unknown product'})"
    yield (
        f"    {seat.memory_mib} of {gpu.memory_mib} MiB, {seat.slices} of {gpu.slices} slices; "
        f"{seat.free_mib} MiB are free"
    )
    if not seat.neighbours:
        yield "    alone on this GPU"
    for other in sorted(seat.neighbours, key=lambda each: str(each.pod)):
        yield (
            f"    beside {other.pod}: {other.memory_mib} MiB, {other.slices} slices"
            f" ({other.state.value})"
        )
