# SPDX-License-Identifier: Apache-2.0
"""When a GPU counts as sick, and when as well again.

One bad sign is enough to be sick; only several good looks in a row, more after each relapse, make
it well. So a GPU with a loose contact doesn't flap, and one that was reset comes back by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from deviceplugin.inventory import Inventory, Reading
from gpuslice.contract.names import GpuUuid

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""The program on the GPU is at fault, not the GPU.

Source: NVIDIA's Xid catalogue, and the list that NVIDIA/k8s-device-plugin ignores
(internal/rm/health.go).
"""

RELAPSE_FACTOR: Final = 2
MOST_RELAPSES: Final = 5
"""The wait for recovery is doubled at most so often."""
WATCHED_FOR: Final = 10
"""A recovered GPU's relapses are forgotten after so many times the reads it had to pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One XID event: the driver's number for what went wrong, and on which GPU."""

    number: int
    gpu: GpuUuid
    """The physical GPU."""
    gpu_instance: int | None = None
    """The MIG instance that it is about, where it is about one."""
    compute_instance: int | None = None


def struck_by(xid: Xid, inventory: Inventory) -> tuple[GpuUuid, ...]:
    """Return the GPUs that an event is about.

    An event about a physical GPU strikes all its MIG instances, one about an instance only that.
    """
    return tuple(
        gpu.uuid
        for gpu in inventory.gpus
        if gpu.uuid == xid.gpu
        or (
            gpu.mig_parent == xid.gpu
            and xid.gpu_instance in {None, gpu.gpu_instance}
            and xid.compute_instance in {None, gpu.compute_instance}
        )
    )


def signs_in(
    known: Inventory, reading: Reading, before: Mapping[GpuUuid, int]
) -> dict[GpuUuid, str]:
    """Return what is wrong with each GPU as far as one look tells.

    Args:
        known: the inventory after this look: those not in the look are unhealthy, with a reason.
        reading: the look.
        before: the uncorrected ECC errors at the last look. Those from before the first say
            nothing about now.
    """
    signs = {gpu.uuid: gpu.reason for gpu in known.gpus if not gpu.healthy}
    for gpu in known.gpus:
        source = gpu.mig_parent or gpu.uuid
        now = reading.uncorrected_errors.get(source, 0)
        fresh = now - before.get(source, now)
        if fresh > 0:
            signs.setdefault(gpu.uuid, f"{fresh} new uncorrected ECC errors")
    return signs


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """What holds for some GPUs in place of what holds for all."""

    ignored_xids: Mapping[GpuUuid, frozenset[int]] = field(default_factory=dict)
    needed: Mapping[GpuUuid, int] = field(default_factory=dict)
    """Good looks in a row that make it well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How one GPU's illness goes."""

    reason: str
    """Empty: recovered, but still remembered."""
    by_event: bool = False
    """Then the reason says more than what later looks find, and stays."""
    clean_reads: int = 0
    """Good looks in a row."""
    needed: int
    """Good looks in a row that make it well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The GPUs that are or were sick."""

    recover_after_reads: int = 3
    courses: Mapping[GpuUuid, Course] = field(default_factory=dict)
    needed: Mapping[GpuUuid, int] = field(default_factory=dict)
    """The same of some GPUs, in place of `recover_after_reads`."""

    @property
    def reasons(self) -> dict[GpuUuid, str]:
        """The sick GPUs, and why."""
        return {uuid: course.reason for uuid, course in self.courses.items() if course.reason}

    def after_event(self, uuid: GpuUuid, reason: str) -> Diagnosis:
        """Take note of an event about a GPU."""
        course = self._worse(uuid, reason, by_event=True)
        return dataclasses.replace(self, courses={**self.courses, uuid: course})

    def after_read(self, signs: Mapping[GpuUuid, str]) -> Diagnosis:
        """Take note of one look: GPUs without a sign looked well."""
        courses = {uuid: self._worse(uuid, reason) for uuid, reason in signs.items()}
        for uuid, course in self.courses.items():
            if uuid not in signs and (better := _better(course)) is not None:
                courses[uuid] = better
        return dataclasses.replace(self, courses=courses)

    def _worse(self, uuid: GpuUuid, reason: str, *, by_event: bool = False) -> Course:
        course = self.courses.get(uuid)
        least = self.needed.get(uuid, self.recover_after_reads)
        if course is None:
            return Course(reason=reason, by_event=by_event, needed=least)
        if not course.reason:
            most = least * RELAPSE_FACTOR**MOST_RELAPSES
            needed = min(course.needed * RELAPSE_FACTOR, most)
            return Course(reason=reason, by_event=by_event, needed=needed)
        if course.by_event and not by_event:
            reason, by_event = course.reason, True
        return Course(reason=reason, by_event=by_event, needed=course.needed)


def _better(course: Course) -> Course | None:
    better = dataclasses.replace(course, clean_reads=course.clean_reads + 1)
    if course.reason:
        well = better.clean_reads >= course.needed
        return Course(reason="", needed=course.needed) if well else better
    return None if better.clean_reads >= course.needed * WATCHED_FOR else better
