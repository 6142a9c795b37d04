# SPDX-License-Identifier: Apache-2.0
"""`kubectl gpuslice explain POD`: why a pod waits, or which GPU it has and with whom."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from gpuslice.cli import reason_lines, reasons, sheets
from gpuslice.cli.reach import Reach, connected, options
from gpuslice.cli.reasons import Reason
from gpuslice.contract import gpunode, names
from gpuslice.runtime.kube.resources import GPU_NODES, PODS


@click.command(name="explain")
@click.argument("pod")
@click.option(
    "--resource-name",
    default=names.SLICE_RESOURCE,
    show_default=True,
    help="The cluster's setting `resourceName`.",
)
@click.option("-o", "--output", type=click.Choice(["json", "yaml"]), help="Default: lines.")
@options
def explain_pod(*, pod: str, resource_name: str, output: str | None, reach: Reach) -> None:
    """Say why POD waits (per node the largest free share), or which GPU it has and with whom."""
    name = pod.removeprefix("pod/").removeprefix("pods/")
    with connected(reach) as client:
        found = client.get(PODS, name, namespace=reach.namespace or client.namespace)
        ledgers = [gpunode.ledger_of(each) for each in client.list(GPU_NODES)]
    reason = reasons.explain_pod(found, ledgers, resource_name)
    if output:
        click.echo(sheets.dumped(fact_of(reason), output))
    else:
        click.echo("\n".join(reason_lines.lines_of(reason)))


def fact_of(reason: Reason) -> dict[str, Any]:
    """Return a reason as plain JSON, with its kind: Waiting, Placed or Elsewhere."""
    fact: dict[str, Any] = {"kind": type(reason).__name__}
    return fact | {
        field.name: _plain(getattr(reason, field.name)) for field in dataclasses.fields(reason)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bool | int | None):
        return value
    if dataclasses.is_dataclass(value) and type(value).__str__ is object.__str__:
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    return str(value)
