# SPDX-License-Identifier: Apache-2.0
"""The command `kubectl gpuslice`: kubectl finds it as `kubectl-gpuslice`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Final

import click

from gpuslice.cli.reach import KUBECTL_PROGRAM

INTERRUPTED: Final = 130
"""What a shell reports of a program that Ctrl-C ended."""
COMMANDS: Final = {
    "top": ("gpuslice.cli.top.command", "top", "Show who has how much of which GPU."),
    "explain": (
        "gpuslice.cli.explain_pod",
        "explain_pod",
        "Say why a pod waits, or which GPU it has and with whom.",
    ),
    "doctor": (
        "gpuslice.cli.doctor.command",
        "doctor",
        "Check the installation end to end, and name the fix of what is wrong.",
    ),
    "capacity": (
        "gpuslice.cli.capacity.command",
        "capacity",
        "Say what an empty node publishes, for people and for autoscalers.",
    ),
}
"""Module, attribute and summary; imported when called."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, about[2]) for name, about in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gpuslice", message="%(prog)s %(version)s")
def kubectl_gpuslice() -> None:
    """Fractional GPUs: who has what, why a pod waits, and what is wrong."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    arguments = None if argv is None else list(argv)
    try:
        result = kubectl_gpuslice.main(
            args=arguments, prog_name=KUBECTL_PROGRAM, standalone_mode=False
        )
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
    return result if isinstance(result, int) else 0
