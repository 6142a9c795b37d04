# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.cluster.harness`: what the make targets in cluster.mk run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from . import build, gomodules, owner, prerequisites
from .errors import HarnessError, MissingError
from .gpus import read_plans
from .paths import REPOSITORY, run_folder

VERSION = click.option("--kube-version", default=build.DEFAULT_KUBE_VERSION, show_default=True)
NAME = click.option("--name", default="dev", show_default=True, help="several can be up at once")


class Refused(click.ClickException):
    """Printed as it is: one line for each thing to do."""

    def show(self, file: object = None) -> None:
        click.echo(self.message, err=True)


class Group(click.Group):
    """Shows the harness's own errors without a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except HarnessError as err:
            raise Refused(str(err)) from err


@click.group(cls=Group)
def main() -> None:
    """Run a real Kubernetes with GPUs that aren't there, on this machine."""


@main.command()
def check() -> None:
    """Say what this machine lacks: 0 if nothing, 1 with one line for each thing."""
    lines = prerequisites.missing() + ([] if build.has_go() else [build.NO_GO])
    if lines:
        raise MissingError("\n".join(lines))


@main.command()
def packages() -> None:
    """Print the Debian packages that a cluster needs."""
    click.echo(" ".join(prerequisites.PACKAGES))


@main.command("build")
@VERSION
def build_command(kube_version: str) -> None:
    """Compile Kubernetes, etcd and containerd, unless the cache has them."""
    started = time.monotonic()
    binaries = build.binaries(kube_version)
    click.echo(f"{binaries.kubernetes.parent} ({time.monotonic() - started:.0f} s)")


@main.command("modules")
@click.argument("kube_version")
def modules_command(kube_version: str) -> None:
    """Write the go.mod and go.sum of another version of Kubernetes."""
    click.echo(gomodules.write(kube_version))


@main.command()
@NAME
@VERSION
@click.option(
    "--gpus",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=REPOSITORY / "tests" / "cluster" / "gpus.yaml",
    help="the nodes and their GPUs",
)
@click.option("--empty", is_flag=True, help="don't deploy gpuslice")
def up(name: str, kube_version: str, gpus: Path, *, empty: bool) -> None:
    """Bring a cluster up, and leave it running."""
    read_plans(gpus)  # what is wrong with it is said here, not in a log
    for line in owner.start(name=name, kube_version=kube_version, gpus=gpus, is_empty=empty):
        click.echo(line)


@main.command()
@NAME
def down(name: str) -> None:
    """Take a cluster down, without a trace."""
    seconds = owner.stop(name)
    click.echo(f"{name} is down ({seconds:.1f} s)")


@main.command(context_settings={"ignore_unknown_options": True})
@NAME
@VERSION
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kubectl(name: str, kube_version: str, arguments: tuple[str, ...]) -> None:
    """Run the cluster's own kubectl."""
    program = build.binaries(kube_version).kube("kubectl")
    kubeconfig = run_folder(name) / "kubeconfig"
    os.execv(program[0], (*program, f"--kubeconfig={kubeconfig}", *arguments))
