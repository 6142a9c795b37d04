# SPDX-License-Identifier: Apache-2.0
"""The demo must fail where a mistake is planted, and say which promise broke."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.wire.demo.demos import PROJECT, DemoRun

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("demo-breaks")]

SABOTAGE = PROJECT / "tests" / "sabotage" / "demo.py"


@pytest.mark.parametrize(
    ("mistake", "broken", "said"),
    [
        pytest.param(
            "sums-alone",
            4,
            "was rejected by its kubelet: UnexpectedAdmissionError",
            id="placed by sums alone",
        ),
        pytest.param(
            "no-arbiter",
            4,
            "was rejected by its kubelet: UnexpectedAdmissionError",
            id="without the arbiter",
        ),
        pytest.param(
            "shared-mib",
            3,
            "has 23034 MiB, and 23517 MiB of it are promised: two claims share MiB",
            id="two claims share MiB",
        ),
    ],
)
def test_a_planted_mistake_breaks_a_promise(
    mistake: str, broken: int, said: str, tmp_path: Path
) -> None:
    run = DemoRun([sys.executable, str(SABOTAGE), mistake], tmp_path)
    try:
        assert run.end() == 1, run.output
        assert run.verdicts()[broken] == "FAIL"
        assert said in run.output
        assert f"Broken: promise {broken}" in run.output.replace("promise 1, ", "promise ")
        run.wait_until_nothing_is_left(5)
        assert all((folder / "logs").is_dir() for folder in run.folders()), "the logs are kept"
    finally:
        run.close()
