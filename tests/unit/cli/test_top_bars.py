# SPDX-License-Identifier: Apache-2.0
"""Bars, their colours, and who may have one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.cli import main
from gpuslice.cli.kubectl import COMMANDS
from gpuslice.cli.main import _SUBCOMMANDS
from gpuslice.cli.reach import KUBECTL_PROGRAM, Reach, kubeconfig_of
from gpuslice.cli.top.bars import bar, coloured


@pytest.mark.parametrize(
    ("used", "total", "text"),
    [
        (0, 100, "[--------------------] 0%"),
        (1, 1000, "[#-------------------] 0%"),
        (50, 100, "[##########----------] 50%"),
        (999, 1000, "[###################-] 99%"),
        (100, 100, "[####################] 100%"),
        (150, 100, "[####################] 150%"),
        (0, 0, "-"),
    ],
)
def test_a_bar_is_full_only_when_all_is_taken(used: int, total: int, text: str) -> None:
    assert bar(used, total) == text


def test_no_color_means_no_colour() -> None:
    assert coloured("x", 50, 100, {"NO_COLOR": "1"}) == "x"
    assert "\x1b[32m" in coloured("x", 50, 100, {})
    assert "\x1b[33m" in coloured("x", 95, 100, {})
    assert "\x1b[31m" in coloured("x", 101, 100, {})


def test_kubectls_plugin_never_takes_the_demos_cluster(tmp_path: Path) -> None:
    kept = tmp_path / "gpuslice" / "kubeconfig"
    kept.parent.mkdir()
    kept.touch()
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    assert kubeconfig_of(Reach(), "gpuslice", environment) == kept
    assert kubeconfig_of(Reach(), KUBECTL_PROGRAM, environment) is None
    assert kubeconfig_of(Reach(context="prod"), "gpuslice", environment) is None
    assert kubeconfig_of(Reach(), "gpuslice", {**environment, "KUBECONFIG": "x"}) is None


def test_every_command_of_the_plugin_is_one_of_gpuslice_too() -> None:
    assert set(COMMANDS) <= set(_SUBCOMMANDS)


@pytest.mark.parametrize("name", ["top", "doctor", "capacity"])
def test_help_is_there_under_gpuslice(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([name, "--help"]) == 0
    assert f"Usage: gpuslice {name}" in capsys.readouterr().out
