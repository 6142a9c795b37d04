# SPDX-License-Identifier: Apache-2.0
"""Which cluster, context and namespace a command is about, as kubectl reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from gpuslice.cli.errors import said_plainly
from gpuslice.cli.kubeconfigs import kept_path
from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient

Command = TypeVar("Command", bound=Callable[..., Any])

KUBECTL_PROGRAM: Final = "kubectl-gpuslice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What the flags say."""

    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = ""
    """Empty for the context's own."""
    all_namespaces: bool = False

    def namespace_of(self, client: KubeClient) -> str:
        """Return the namespace that is meant, empty for all."""
        return "" if self.all_namespaces else self.namespace or client.namespace


def options(command: Command) -> Command:
    """Add kubectl's flags to a command, which gets them as ``reach``."""
    flags = (
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="Default: KUBECONFIG, else ~/.kube/config.",
        ),
        click.option("--context", default="", help="Of the kubeconfig; default: its current one."),
        click.option("-n", "--namespace", default="", help="Default: the context's own."),
        click.option("-A", "--all-namespaces", is_flag=True, help="Of every namespace."),
    )

    def with_reach(
        *args: Any,
        kubeconfig: Path | None,
        context: str,
        namespace: str,
        all_namespaces: bool,
        **others: Any,
    ) -> Any:
        reach = Reach(
            kubeconfig=kubeconfig,
            context=context,
            namespace=namespace,
            all_namespaces=all_namespaces,
        )
        return command(*args, reach=reach, **others)

    with_reach.__name__, with_reach.__doc__ = command.__name__, command.__doc__
    # Flags that stand below this decorator are kept on the function.
    with_reach.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined] # click's own way
    for flag in reversed(flags):
        flag(with_reach)
    return with_reach  # type: ignore[return-value] # a command either way


def kubeconfig_of(reach: Reach, program: str, environment: Mapping[str, str]) -> Path | None:
    """Return the kubeconfig to use, None where kubectl's own rule decides.

    A running `gpuslice demo --keep` comes before ~/.kube/config, but never for kubectl's plugin:
    it must be about the same cluster as kubectl itself.
    """
    if reach.kubeconfig is not None or environment.get("KUBECONFIG"):
        return reach.kubeconfig
    kept = kept_path(environment)
    if program != KUBECTL_PROGRAM and not reach.context and kept.exists():
        return kept
    return None


@contextmanager
def connected(reach: Reach) -> Iterator[KubeClient]:
    """Reach the cluster, and say plainly what goes wrong."""
    program = click.get_current_context().find_root().info_name or ""
    with said_plainly():
        found = kubeconfig_of(reach, program, os.environ)
        client = KubeClient(config.load(found, context=reach.context), component="cli")
        try:
            yield client
        finally:
            client.close()
