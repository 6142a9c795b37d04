# SPDX-License-Identifier: Apache-2.0
"""Children of the embedded cluster: their logs, their end, and their end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.sim.processes import ProcessError, Processes

TALKER = """
import signal, sys, time
print("hello", flush=True)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "short" in sys.argv:
    sys.exit("I give up")
time.sleep(60)
"""
PARENT = """
import sys, time
from pathlib import Path
from gpuslice.sim.processes import Processes
child = Processes(Path(sys.argv[1]), {"PYTHONPATH": sys.argv[1]}).start("talker", "talker", ())
child.wait_until(lambda: "hello" in child.log.read_text(), seconds=10)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    (tmp_path / "talker.py").write_text(TALKER)
    some = Processes(tmp_path, {"PYTHONPATH": str(tmp_path)})
    yield some
    some.close()


def test_its_output_is_in_its_log(processes: Processes) -> None:
    child = processes.start("talker", "talker", ())
    child.wait_until(lambda: "hello" in child.log.read_text(), seconds=10)
    assert child.exit_code is None
    processes.stop(child)
    assert child.exit_code == -signal.SIGTERM


def test_one_that_ends_before_it_is_ready_is_quoted(processes: Processes) -> None:
    child = processes.start("talker", "talker", ("short",))
    with pytest.raises(ProcessError) as error:
        child.wait_until(lambda: False, seconds=10)
    assert "talker ended with 1; the end of" in str(error.value)
    assert "I give up" in str(error.value)
    assert [each.name for each in processes.ended()] == ["talker"]


def test_one_that_is_never_ready_is_quoted_too(processes: Processes) -> None:
    child = processes.start("talker", "talker", ())
    with pytest.raises(ProcessError, match=r"talker is not ready in 0\.1 s"):
        child.wait_until(lambda: False, seconds=0.1)


def test_a_child_dies_with_a_parent_that_is_killed(processes: Processes, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/environ").exists() and _state(pid) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_one_that_was_never_started_by_a_living_parent_refuses_to_run(tmp_path: Path) -> None:
    nobody = str(os.getpid())  # not the parent of what runs inside the shell below
    ran = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m gpuslice.sim.leash {nobody} /bin/true; exit $?"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "the parent has ended already" in ran.stderr
