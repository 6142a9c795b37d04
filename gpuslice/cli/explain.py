# SPDX-License-Identifier: Apache-2.0
"""`gpuslice explain`: a manifest offline, or a pod from the ledger."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from gpuslice.cli import reason_lines, reasons
from gpuslice.cli.errors import said_plainly
from gpuslice.cli.manifests import read_manifests
from gpuslice.cli.objects import connected, file_option, kubeconfig_option
from gpuslice.contract import gpunode
from gpuslice.runtime import settings
from gpuslice.runtime.kube.resources import GPU_NODES, PODS
from gpuslice.runtime.settings import Settings

USAGE: Final = "gpuslice explain -f pod.yaml, or gpuslice explain pod NAME"
POD_NAMES: Final = ("pod", "pods", "po")


@click.command()
@click.argument("kind", required=False)
@click.argument("name", required=False)
@file_option
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option(
    "--settings",
    "settings_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The cluster's settings file; default: the settings' defaults.",
)
@click.option(
    "--gpu-memory",
    "gpus_mib",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="MIB",
    help="With -f: the memory of a kind of GPU to assume; may be repeated.",
)
@kubeconfig_option
def explain(
    kind: str | None,
    name: str | None,
    files: Sequence[str],
    *,
    namespace: str,
    settings_path: Path | None,
    gpus_mib: Sequence[int],
    kubeconfig: Path | None,
) -> int:
    """Say what admission does to a manifest (-f, offline), or why a pod waits (pod NAME).

    With -f the exit code is 1 if anything would be refused.
    """
    if bool(files) == bool(kind) or (kind and (not name or kind.lower() not in POD_NAMES)):
        raise click.UsageError(USAGE)
    try:
        chosen = settings.load(settings_path)
    except settings.SettingsError as error:
        raise click.ClickException(str(error)) from error
    if files:
        return _manifests(files, chosen, gpus_mib)
    assert name is not None
    return _pod(namespace, name, chosen, kubeconfig)


def _manifests(files: Sequence[str], chosen: Settings, gpus_mib: Sequence[int]) -> int:
    # The webhook's modules take 0.1 s that `explain pod` doesn't need.
    from gpuslice.cli import admission_lines  # noqa: PLC0415
    from webhook.policies import Fleet  # noqa: PLC0415
    from webhook.standing import policy_of  # noqa: PLC0415

    fleet = Fleet(kinds_mib=tuple(sorted(set(gpus_mib))))
    policy = policy_of(chosen, fleet)
    refused = False
    with said_plainly():
        manifests = [each for file in files for each in read_manifests(file, sys.stdin)]
    for manifest in manifests:
        explained = admission_lines.explain(manifest, policy)
        refused = refused or explained.refused
        click.echo("\n".join(explained.lines))
    return 1 if refused else 0


def _pod(namespace: str, name: str, chosen: Settings, kubeconfig: Path | None) -> int:
    with connected(kubeconfig) as client:
        pod = client.get(PODS, name, namespace=namespace)
        ledgers = [gpunode.ledger_of(each) for each in client.list(GPU_NODES)]
    reason = reasons.explain_pod(pod, ledgers, chosen.resource_name)
    click.echo("\n".join(reason_lines.lines_of(reason)))
    return 0
