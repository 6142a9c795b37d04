# SPDX-License-Identifier: Apache-2.0
"""Findings: what is wrong with an installation, and what mends it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuslice.cli.doctor.snapshot import Snapshot


class Severity(enum.StrEnum):
    """How bad it is."""

    ERROR = "error"
    """A guarantee is broken, or pods that ask for a share don't run."""
    WARNING = "warning"
    """It works, but less well than it could, or not for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    check: str
    """Which check found it; e.g. ``webhook-trust``."""
    subject: str
    """The object that it is about; e.g. ``node/node-a``."""
    problem: str
    fix: str
    """What to do; a command where one does it."""
    severity: Severity = Severity.ERROR

    @property
    def key(self) -> tuple[str, str]:
        """What is the same in two looks at one fault: its words may name other numbers."""
        return (self.check, self.subject)


Check = Callable[[Snapshot], Iterator[Finding]]
