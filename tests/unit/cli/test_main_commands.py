# SPDX-License-Identifier: Apache-2.0
"""The command line's outside: help, mistakes, lazy imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuslice.cli.main import main


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for command in ("demo", "explain", "apply", "delete", "get", "webhook", "device-plugin"):
        assert f"\n  {command} " in said


def test_an_unknown_command_is_refused_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explode"]) == 2
    assert "No such command 'explode'" in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from gpuslice.cli.main import main; main(['--help']);"
        "print([m for m in ('grpc', 'flask', 'urllib3', 'yaml', 'rich') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("half", "flag"), [("webhook", "--cert-dir"), ("device-plugin", "--driver-root")]
)
def test_each_half_takes_its_own_flags(
    half: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([half, "--help"]) == 0
    assert flag in capsys.readouterr().out
    assert main([half, "--no-such-flag"]) == 2
    assert "--no-such-flag" in capsys.readouterr().err
