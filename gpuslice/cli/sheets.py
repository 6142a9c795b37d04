# SPDX-License-Identifier: Apache-2.0
"""Sheets: one list of facts as a table for people, or as JSON or YAML for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
import yaml

from gpuslice.cli.tables import Table

Fact = Mapping[str, Any]
"""Plain JSON; keys in camelCase."""
Cell = Callable[[Fact], str]
Command = TypeVar("Command", bound=Callable[..., Any])

NOTHING: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """How facts of one kind are shown."""

    narrow: Mapping[str, Cell]
    wide: Mapping[str, Cell]
    last: Mapping[str, Cell]
    """The rightmost column, of any width and colour."""


def options(command: Command) -> Command:
    """Add kubectl's flags for output to a command: ``output`` and ``no_headers``."""
    kinds = click.Choice(["wide", "json", "yaml"])
    for flag in (
        click.option("--no-headers", is_flag=True, help="Rows only."),
        click.option("-o", "--output", type=kinds, help="Default: a table."),
    ):
        command = flag(command)
    return command


def text_of(key: str) -> Cell:
    """Return a cell that shows one key's value."""
    return lambda fact: str(fact[key]) if fact.get(key) not in (None, "") else NOTHING


def table(sheet: Sheet, facts: Sequence[Fact], *, wide: bool) -> Table:
    """Return facts as a table."""
    cells = {**sheet.narrow, **(sheet.wide if wide else {}), **sheet.last}
    rows = tuple(tuple(cell(fact) for cell in cells.values()) for fact in facts)
    return Table(columns=tuple(cells), rows=rows)


def lines(sheet: Sheet, facts: Sequence[Fact], output: str | None, *, headers: bool) -> list[str]:
    """Return facts in the form that was asked for."""
    if output in ("json", "yaml"):
        return [dumped({"items": list(facts)}, output)]
    shown = str(table(sheet, facts, wide=output == "wide")).splitlines()
    return shown if headers else shown[1:]


def dumped(thing: Mapping[str, Any], output: str) -> str:
    """Return an object as JSON or YAML."""
    if output == "json":
        return json.dumps(thing, indent=2)
    return yaml.safe_dump(dict(thing), sort_keys=False).rstrip()
