# SPDX-License-Identifier: Apache-2.0
"""What a process and its children cost, read from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of a process with all its living children."""

    cpu_seconds: float
    pss_mib: float
    threads: int
    descriptors: int


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def cost(pids: list[int]) -> Cost:
    """Return what processes cost together, those left out that have ended meanwhile."""
    seconds, pss, threads, descriptors = 0.0, 0, 0, 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  only their number
        except (FileNotFoundError, ProcessLookupError):
            continue
        seconds += (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
        threads += int(fields[17])
        pss += next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    return Cost(cpu_seconds=seconds, pss_mib=pss / 1024, threads=threads, descriptors=descriptors)
