# SPDX-License-Identifier: Apache-2.0
"""Verdicts: which promises of the demo held, which broke and why, which were not reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpuslice.sim.promises import arrivals, environment, halves, ledger, memory

TITLES: Final = {
    1: halves.TITLE,
    2: environment.TITLE,
    3: memory.TITLE,
    4: arrivals.TITLE,
    5: ledger.TITLE,
}
"""The promises of the demo, by number."""


class BrokenPromiseError(RuntimeError):
    """A promise doesn't hold."""

    def __init__(self, faults: Sequence[str]) -> None:
        """Keep the faults, each a sentence."""
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one promise."""

    number: int
    reached: bool = True
    faults: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether it was checked, and is true."""
        return self.reached and not self.faults

    def lines(self) -> list[str]:
        """Return it in words."""
        word = "PASS" if self.holds else "FAIL" if self.reached else "----"
        title = f"{word}  promise {self.number}: {TITLES[self.number]}"
        if not self.reached:
            title += " (not reached)"
        return [title, *(f"        {fault}" for fault in self.faults)]


def all_hold(verdicts: Sequence[Verdict]) -> bool:
    """Whether every promise was checked and is true."""
    return {verdict.number for verdict in verdicts if verdict.holds} == set(TITLES)


def closing_line(verdicts: Sequence[Verdict], seconds: float) -> str:
    """Return the demo's last line."""
    broken = sorted(verdict.number for verdict in verdicts if verdict.faults)
    if all_hold(verdicts):
        return f"All {len(TITLES)} promises hold ({seconds:.0f} s)."
    return f"Broken: promise {', '.join(map(str, broken)) or '(none reached)'} ({seconds:.0f} s)."
