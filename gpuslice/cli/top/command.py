# SPDX-License-Identifier: Apache-2.0
"""`gpuslice top`: who has how much of which GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import click

from gpuslice.cli import sheets
from gpuslice.cli.reach import Reach, connected, options
from gpuslice.cli.sheets import Cell, Fact, Sheet, text_of
from gpuslice.cli.top import figures, used
from gpuslice.cli.top.bars import bar, coloured
from gpuslice.contract import gpunode
from gpuslice.runtime.kube.resources import GPU_NODES


def _of(used: str, total: str) -> Cell:
    return lambda fact: f"{fact[used]}/{fact[total]}"


def _bar(fact: Fact) -> str:
    used, total = fact["claimedMiB"], fact["memoryMiB"]
    return coloured(bar(used, total), used, total, os.environ)


_CLAIMED: Final[Mapping[str, Cell]] = {
    "MIB": _of("claimedMiB", "memoryMiB"),
    "SLICES": _of("claimedSlices", "slices"),
}
_BAR: Final[Mapping[str, Cell]] = {"CLAIMED": _bar}

_NODES: Final = Sheet(
    narrow={
        "NODE": text_of("node"),
        "GPUS": text_of("gpus"),
        "PODS": text_of("pods"),
        **_CLAIMED,
        "LARGEST FREE": text_of("largestFree"),
    },
    wide={"HEALTH": text_of("health")},
    last=_BAR,
)
_GPUS: Final = Sheet(
    narrow={
        "NODE": text_of("node"),
        "GPU": text_of("gpu"),
        "PODS": text_of("pods"),
        **_CLAIMED,
        "STATE": text_of("state"),
    },
    wide={"PRODUCT": text_of("product"), "UUID": text_of("uuid")},
    last=_BAR,
)
_PODS: Final = Sheet(
    narrow={
        "NAMESPACE": text_of("namespace"),
        "POD": text_of("pod"),
        "SHARE": text_of("share"),
        "NODE": text_of("node"),
        "GPU": text_of("gpus"),
        **_CLAIMED,
    },
    wide={
        "CONTAINER": text_of("container"),
        "STATE": text_of("state"),
        "UUID": text_of("uuids"),
    },
    last=_BAR,
)


_SHEETS: Final = {"nodes": _NODES, "gpus": _GPUS, "pods": _PODS}


@click.command()
@click.argument("what", type=click.Choice(list(_SHEETS)), default="nodes")
@click.option(
    "--used",
    "asks_used",
    is_flag=True,
    help="Also what programs use: asks each node's device plugin (setting devicePlugin.watchUse).",
)
@sheets.options
@options
def top(*, what: str, asks_used: bool, output: str | None, no_headers: bool, reach: Reach) -> None:
    """Show who has how much of which GPU: nodes (the default), gpus or pods.

    What is shown is claimed: promised, whether it is used or not.
    """
    with connected(reach) as client:
        ledgers = [gpunode.ledger_of(each) for each in client.list(GPU_NODES)]
        namespace = reach.namespace_of(client)
        known, problems = used.read(client) if asks_used else ({}, [])
    if what == "pods":
        facts = figures.of_pods(ledgers, namespace, known)
    else:
        of_kind = figures.of_nodes if what == "nodes" else figures.of_gpus
        facts = of_kind(ledgers, known)
    for problem in problems:
        click.echo(f"not known: {problem}", err=True)
    sheet = _with_used(_SHEETS[what]) if asks_used else _SHEETS[what]
    if facts or output in ("json", "yaml"):
        click.echo("\n".join(sheets.lines(sheet, facts, output, headers=not no_headers)))
    else:
        click.echo(f"no {what} found", err=True)


def _with_used(sheet: Sheet) -> Sheet:
    return replace(sheet, narrow={**sheet.narrow, "USED MIB": text_of("usedMiB")})
