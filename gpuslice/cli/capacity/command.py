# SPDX-License-Identifier: Apache-2.0
"""`gpuslice capacity`: what an empty node publishes, for people and for autoscalers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from gpuslice.cli import sheets
from gpuslice.cli.capacity import autoscalers, empty_node
from gpuslice.cli.sheets import Sheet, text_of
from gpuslice.contract.shares import Share, ShareError
from gpuslice.runtime import settings

_SHEET: Final = Sheet(
    narrow={"RESOURCE": text_of("resource")}, wide={}, last={"VALUE": text_of("value")}
)
INSTANCE_TYPE: Final = "INSTANCE-TYPE"
"""To be replaced by whoever applies the overlay."""


@click.command()
@click.option("--gpus", type=click.IntRange(1, 1024), required=True, help="GPUs of the node.")
@click.option(
    "--gpu-memory",
    "memory_mib",
    type=click.IntRange(min=1),
    required=True,
    metavar="MIB",
    help="Of each GPU, for sale: see `kubectl get gpunodes -o yaml`, memoryMiB.",
)
@click.option(
    "--share",
    "share_texts",
    multiple=True,
    help="A share in use, e.g. 0.5, 4000Mi or 2x0.5; may be repeated. "
    "Default: the setting `shares`.",
)
@click.option(
    "--settings",
    "settings_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The cluster's settings file; default: the settings' defaults.",
)
@click.option(
    "--for",
    "audience",
    type=click.Choice(["cluster-autoscaler", "karpenter"]),
    help="Only what that autoscaler is to be told, ready to use.",
)
@click.option(
    "--instance-type", "instance_types", multiple=True, help="For Karpenter; may be repeated."
)
@sheets.options
def capacity(
    *,
    gpus: int,
    memory_mib: int,
    share_texts: Sequence[str],
    settings_path: Path | None,
    audience: str | None,
    instance_types: tuple[str, ...],
    output: str | None,
    no_headers: bool,
) -> None:
    """Say what an empty node publishes: slices and fits. Asks no cluster.

    Autoscalers that start a node from zero must be told: tags for cluster-autoscaler on an Auto
    Scaling group, a NodeOverlay for Karpenter.
    """
    try:
        chosen = settings.load(settings_path)
        shares: list[Share] = [empty_node.read_share(text) for text in share_texts]
    except (settings.SettingsError, ShareError) as error:
        raise click.ClickException(str(error)) from error
    rule = chosen.slice_rule
    empty = empty_node.ledger(gpus, memory_mib, rule)
    if not rule.slices_of_gpu(memory_mib):
        raise click.ClickException(
            f"a GPU of {memory_mib} MiB has no slice of {chosen.slice_memory_mib} MiB; "
            "set sliceMemoryMiB lower"
        )
    found = empty_node.resources(
        empty, shares or chosen.standing_shares, rule, chosen.resource_name
    )
    tags = autoscalers.node_template_tags(found)
    overlay = autoscalers.node_overlay(found, instance_types or (INSTANCE_TYPE,))
    for tag in (key for key in tags if len(key) > autoscalers.TAG_CHARACTERS):
        click.echo(f"warning: AWS takes no tag key of {len(tag)} characters: {tag}", err=True)
    facts = [{"resource": str(name), "value": value} for name, value in found.items()]
    if audience == "cluster-autoscaler":
        click.echo(_tags(tags, output))
    elif audience == "karpenter":
        click.echo(sheets.dumped(overlay, output if output == "json" else "yaml"))
    elif output in ("json", "yaml"):
        whole = {"items": facts, "clusterAutoscalerTags": tags, "nodeOverlay": overlay}
        click.echo(sheets.dumped(whole, output))
    else:
        for line in sheets.lines(_SHEET, facts, output, headers=not no_headers):
            click.echo(line)
        click.echo("\n# cluster-autoscaler: tags of the Auto Scaling group (also behind EKS)")
        click.echo(_tags(tags, None))
        click.echo("\n# Karpenter: with the feature gate NodeOverlay, which is alpha")
        click.echo(sheets.dumped(overlay, "yaml"))


def _tags(tags: dict[str, Any], output: str | None) -> str:
    if output in ("json", "yaml"):
        return sheets.dumped(tags, output)
    return "\n".join(f"{key}={value}" for key, value in tags.items())
