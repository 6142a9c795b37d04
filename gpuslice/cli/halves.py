# SPDX-License-Identifier: Apache-2.0
"""`gpuslice webhook` and `gpuslice device-plugin`: the two halves, with their own flags."""

from __future__ import annotations

import importlib
from typing import Final

import click

_PASS_ON: Final = {"ignore_unknown_options": True, "allow_extra_args": True}


def _run(package: str, arguments: tuple[str, ...]) -> int:
    half = importlib.import_module(f"{package}.command")
    result = half.main(list(arguments))
    assert isinstance(result, int)
    return result


@click.command(context_settings=_PASS_ON, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def webhook(arguments: tuple[str, ...]) -> int:
    """Serve admission and placement (the same as python -m webhook)."""
    return _run("webhook", arguments)


@click.command("device-plugin", context_settings=_PASS_ON, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def device_plugin(arguments: tuple[str, ...]) -> int:
    """Serve a node's GPUs (the same as python -m deviceplugin)."""
    return _run("deviceplugin", arguments)
