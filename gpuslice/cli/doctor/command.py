# SPDX-License-Identifier: Apache-2.0
"""`gpuslice doctor`: what is wrong with the installation, and what mends it."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from gpuslice.cli import sheets
from gpuslice.cli.doctor import checks
from gpuslice.cli.doctor.findings import Finding, Severity
from gpuslice.cli.doctor.reading import Reader
from gpuslice.cli.reach import Reach, connected, options

Found = Mapping[str, Sequence[Finding]]

_MARKS: Final = {None: ("ok  ", "green"), "warning": ("WARN", "yellow"), "error": ("FAIL", "red")}


@click.command()
@click.option(
    "--second-look",
    "pause_seconds",
    type=click.FloatRange(min=0),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="Where something is found: look again after so long, and tell what is found twice. "
    "0: tell what one look finds.",
)
@click.option(
    "--admission/--no-admission",
    default=True,
    show_default=True,
    help="Whether to try a pod's admission. The API server doesn't store it (dry run).",
)
@click.option("-o", "--output", type=click.Choice(["wide", "json", "yaml"]), help="Default: lines.")
@options
def doctor(*, pause_seconds: float, admission: bool, output: str | None, reach: Reach) -> int:
    """Check the installation end to end, and name the fix of what is wrong.

    Reads only. The exit code is 1 where something is wrong, 0 where there are but warnings.
    """
    with connected(reach) as client:
        namespace = reach.namespace or client.namespace

        def look() -> dict[str, tuple[Finding, ...]]:
            return checks.examine(Reader(client).look(namespace, tries_admission=admission))

        found = look()
        if any(found.values()) and pause_seconds:
            threading.Event().wait(pause_seconds)
            found = checks.lasting(found, look())
    if output in ("json", "yaml"):
        click.echo(sheets.dumped({"items": facts(found)}, output))
    else:
        for line in lines(found, os.environ, wide=output == "wide"):
            click.echo(line)
    return int(any(each.severity is Severity.ERROR for all_ in found.values() for each in all_))


def facts(found: Found) -> list[dict[str, Any]]:
    """Return findings as plain JSON."""
    return [
        dataclasses.asdict(each) | {"severity": each.severity.value}
        for all_ in found.values()
        for each in all_
    ]


def lines(found: Found, environment: Mapping[str, str], *, wide: bool = False) -> Iterator[str]:
    """Yield what a person reads; `wide` tells of the checks that found nothing too."""
    for name, all_ in found.items():
        if not all_ and wide:
            yield f"{_mark(None, environment)}  {name}"
        for each in all_:
            yield f"{_mark(each.severity.value, environment)}  {each.check}: {each.subject}"
            yield f"      {each.problem}"
            yield f"      fix: {each.fix}"
    count = sum(map(len, found.values()))
    if count:
        errors = sum(each.severity is Severity.ERROR for all_ in found.values() for each in all_)
        yield f"{errors} wrong, {count - errors} to look at; {len(found)} checks"
    else:
        yield f"all is well: {len(found)} checks"


def _mark(severity: str | None, environment: Mapping[str, str]) -> str:
    text, colour = _MARKS[severity]
    return text if environment.get("NO_COLOR") else click.style(text, fg=colour)
