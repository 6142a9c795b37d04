# SPDX-License-Identifier: Apache-2.0
"""What the demo shows: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import click

from gpuslice.cli.tables import Table, status
from gpuslice.contract import names, pods
from gpuslice.sim.observation import Observation

COLUMNS = ("POD", "SHARE", "STATUS", "NODE", "GPU", "MIB", "SLICES")
UUID_CHARACTERS = 12
"""Enough of ``GPU-1b2c3d4e-...`` to tell GPUs apart."""


class Screen(Protocol):
    """Where the demo shows what happens."""

    def say(self, *lines: str) -> None:
        """Show lines that stay."""

    def show(self, seen: Observation) -> None:
        """Show how things are now."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def rows_of(seen: Observation) -> tuple[tuple[str, ...], ...]:
    """Return the pods as rows of `COLUMNS`, by name."""
    return tuple(sorted(map(_row, seen.pods)))


def _row(pod: Any) -> tuple[str, ...]:
    annotations = pods.annotations_of(pod)
    return (
        str(pods.meta_of(pod)["name"]),
        pods.labels_of(pod).get(names.SHARE_LABEL, "-"),
        status(pod),
        pods.node_name(pod) or "-",
        annotations.get(names.GPU_ANNOTATION, "-")[:UUID_CHARACTERS],
        annotations.get(names.MEMORY_MIB_ANNOTATION, "-"),
        annotations.get(names.SLICES_ANNOTATION, "-"),
    )


class PlainScreen:
    """Lines for a log: each pod once for every change."""

    def __init__(self) -> None:
        """Start with nothing shown."""
        self._shown: set[tuple[str, ...]] = set()

    def say(self, *lines: str) -> None:
        """Print lines."""
        click.echo("\n".join(lines))

    def show(self, seen: Observation) -> None:
        """Print the pods whose row has changed."""
        rows = rows_of(seen)
        new = [row for row in rows if row not in self._shown]
        self._shown = set(rows)
        for name, share, state, node, gpu, mib, _ in new:
            where = f" on {node}, GPU {gpu}, {mib} MiB" if gpu != "-" else ""
            click.echo(f"    {name} ({share}) {state}{where}")

    def close(self) -> None:
        """Leave nothing open."""


class LiveScreen:
    """A table that changes in place, below the lines that stay."""

    def __init__(self) -> None:
        """Take over the terminal's last lines."""
        from rich.console import Console  # noqa: PLC0415  only on a terminal, and only if installed
        from rich.live import Live  # noqa: PLC0415  likewise

        self._console = Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=10, transient=True)
        self._live.start()

    def say(self, *lines: str) -> None:
        """Print lines above the table."""
        for line in lines:
            style = "bold green" if line.startswith("PASS") else None
            style = "bold red" if line.startswith("FAIL") else style
            self._console.print(line, style=style, markup=False)

    def show(self, seen: Observation) -> None:
        """Draw the table again."""
        from rich.table import Table as RichTable  # noqa: PLC0415  likewise

        table = RichTable(*COLUMNS)
        styles = {"Running": "green", "Pending": "yellow", "Terminating": "dim"}
        for row in rows_of(seen):
            table.add_row(*row, style=styles.get(row[2], "red"))
        self._live.update(table)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def screen_for(*, terminal: bool) -> Screen:
    """Return the live screen on a terminal where rich is installed, the plain one otherwise."""
    if terminal:
        try:
            return LiveScreen()
        except ModuleNotFoundError:
            pass
    return PlainScreen()


def indented(table: Table | Sequence[str]) -> list[str]:
    """Return lines a step to the right."""
    lines = str(table).splitlines() if isinstance(table, Table) else table
    return [f"    {line}" for line in lines]
