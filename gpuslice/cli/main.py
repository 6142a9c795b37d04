# SPDX-License-Identifier: Apache-2.0
"""The command `gpuslice`.

A subcommand's module is imported when it is called, so that `--help` costs no import of what the
others need.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import click

INTERRUPTED: Final = 130
"""What a shell reports of a program that Ctrl-C ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subcommand:
    module: str
    attribute: str
    summary: str


_SUBCOMMANDS: Final = {
    "demo": _Subcommand(
        module="gpuslice.cli.demo.command",
        attribute="demo",
        summary="Run the sharing manifests on an embedded cluster, and check every promise.",
    ),
    "explain": _Subcommand(
        module="gpuslice.cli.explain",
        attribute="explain",
        summary="Say what admission does to a manifest, or why a pod waits.",
    ),
    "top": _Subcommand(
        module="gpuslice.cli.top.command",
        attribute="top",
        summary="Show who has how much of which GPU.",
    ),
    "doctor": _Subcommand(
        module="gpuslice.cli.doctor.command",
        attribute="doctor",
        summary="Check the installation end to end, and name the fix of what is wrong.",
    ),
    "capacity": _Subcommand(
        module="gpuslice.cli.capacity.command",
        attribute="capacity",
        summary="Say what an empty node publishes, for people and for autoscalers.",
    ),
    "apply": _Subcommand(
        module="gpuslice.cli.objects",
        attribute="apply",
        summary="Create or update the objects of a file or folder.",
    ),
    "delete": _Subcommand(
        module="gpuslice.cli.objects",
        attribute="delete",
        summary="Delete the objects of a file, or one by its kind and name.",
    ),
    "get": _Subcommand(
        module="gpuslice.cli.objects",
        attribute="get",
        summary="Show pods, nodes, gpunodes or gpushares.",
    ),
    "webhook": _Subcommand(
        module="gpuslice.cli.halves",
        attribute="webhook",
        summary="Serve admission and placement (the same as python -m webhook).",
    ),
    "device-plugin": _Subcommand(
        module="gpuslice.cli.halves",
        attribute="device_plugin",
        summary="Serve a node's GPUs (the same as python -m deviceplugin).",
    ),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        known = _SUBCOMMANDS.get(cmd_name)
        if known is None:
            return None
        command = getattr(importlib.import_module(known.module), known.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, known.summary) for name, known in _SUBCOMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gpuslice", message="%(prog)s %(version)s")
def gpuslice() -> None:
    """Fractional GPUs on an unmodified Kubernetes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    arguments = None if argv is None else list(argv)
    try:
        result = gpuslice.main(args=arguments, prog_name="gpuslice", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as usage:
        click.echo(usage.format_message())
        return 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    except ModuleNotFoundError as missing:
        # rich and the embedded cluster's CEL are extras: a webhook's image has neither.
        hint = "pip install 'gpuslice[cli,demo]'"
        click.echo(f"Error: the Python package {missing.name} is not installed: {hint}", err=True)
        return 1
    return result if isinstance(result, int) else 0
