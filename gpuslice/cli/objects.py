# SPDX-License-Identifier: Apache-2.0
"""`gpuslice apply`, `delete` and `get`: the little of kubectl that the embedded cluster needs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import yaml

from gpuslice.cli import applying
from gpuslice.cli.errors import said_plainly
from gpuslice.cli.kinds import DEFAULT_NAMESPACE, UnknownKindError, resource_named, singular
from gpuslice.cli.kubeconfigs import find_kubeconfig
from gpuslice.cli.manifests import read_manifests
from gpuslice.cli.tables import table_of
from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import KubeError
from gpuslice.runtime.kube.resources import Resource

Json = Mapping[str, Any]
Command = Callable[..., Any]

kubeconfig_option: Final = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Which cluster; default: KUBECONFIG, else the running `gpuslice demo --keep`.",
)
namespace_option: Final = click.option(
    "-n", "--namespace", help=f"Default: the object's own, else {DEFAULT_NAMESPACE}."
)
file_option: Final = click.option(
    "-f", "--filename", "files", multiple=True, help="A file, a folder, or - for standard input."
)


@contextmanager
def connected(kubeconfig: Path | None) -> Iterator[KubeClient]:
    """Reach the cluster that a command is about, and say plainly what goes wrong."""
    with said_plainly():
        found = find_kubeconfig(kubeconfig, os.environ)
        client = KubeClient(config.load(found), component="cli")
        try:
            yield client
        finally:
            client.close()


def resource_meant(client: KubeClient, text: str) -> Resource:
    """Return the kind that a person means, built in or defined in the cluster."""
    try:
        return resource_named(text)
    except UnknownKindError:
        return resource_named(text, applying.definitions(client))


@click.command()
@file_option
@namespace_option
@kubeconfig_option
def apply(files: Sequence[str], namespace: str | None, kubeconfig: Path | None) -> int:
    """Create or update the objects of files, folders or standard input."""
    if not files:
        raise click.UsageError("name a file: gpuslice apply -f pod.yaml")
    return _for_each(applying.apply, files, namespace, kubeconfig)


@click.command()
@click.argument("kind", required=False)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@file_option
@namespace_option
@kubeconfig_option
def delete(
    kind: str | None,
    names: Sequence[str],
    files: Sequence[str],
    namespace: str | None,
    kubeconfig: Path | None,
) -> int:
    """Delete the objects of files (-f), or objects by KIND and NAME."""
    if bool(files) == bool(kind) or (kind and not names):
        raise click.UsageError("gpuslice delete -f pod.yaml, or gpuslice delete pod NAME")
    if files:
        return _for_each(applying.delete, files, namespace, kubeconfig)
    assert kind is not None
    with connected(kubeconfig) as client:
        resource = resource_meant(client, kind)
        for name in names:
            click.echo(applying.delete_named(client, resource, name, namespace))
    return 0


def _for_each(
    act: Command, files: Sequence[str], namespace: str | None, kubeconfig: Path | None
) -> int:
    """Act on each object; one that is refused doesn't keep the others from their turn."""
    failures = 0
    with connected(kubeconfig) as client:
        manifests = [each for file in files for each in read_manifests(file, sys.stdin)]
        for manifest in applying.in_order(manifests):
            try:
                click.echo(act(client, manifest, namespace))
            except (KubeError, UnknownKindError) as error:
                failures += 1
                click.echo(f"{manifest.kind.lower()}/{manifest.name}: {error}", err=True)
    return min(failures, 1)


@click.command()
@click.argument("kind")
@click.argument("name", required=False)
@click.option(
    "-o", "--output", type=click.Choice(["wide", "json", "yaml"]), help="Default: a table."
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Of every namespace.")
@click.option("--no-headers", is_flag=True, help="Rows only.")
@namespace_option
@kubeconfig_option
def get(
    kind: str,
    name: str | None,
    output: str | None,
    namespace: str | None,
    kubeconfig: Path | None,
    *,
    all_namespaces: bool,
    no_headers: bool,
) -> int:
    """Show pods, nodes, gpunodes, gpushares, or any other KIND."""
    with connected(kubeconfig) as client:
        resource = resource_meant(client, kind)
        where = "" if all_namespaces else namespace or DEFAULT_NAMESPACE
        if name is not None:
            items: Sequence[Json] = (client.get(resource, name, namespace=where),)
        else:
            items = client.list(resource, namespace=where)
    if output in ("json", "yaml"):
        shown = items[0] if name is not None else {"apiVersion": "v1", "kind": "List"}
        whole = shown if name is not None else {**shown, "items": list(items)}
        click.echo(_dumped(whole, output))
    elif not items:
        click.echo(f"no {singular(resource)} found", err=True)
    else:
        now = datetime.now(UTC)
        table = table_of(resource.kind, items, now=now, wide=output == "wide")
        lines = str(table).splitlines()
        click.echo("\n".join(lines[1:] if no_headers else lines))
    return 0


def _dumped(item: Json, output: str) -> str:
    if output == "json":
        return json.dumps(item, indent=2)
    return yaml.safe_dump(dict(item), sort_keys=False).rstrip()
