# SPDX-License-Identifier: Apache-2.0
"""Control daemons as child processes: kept alive, told of, and their GPUs restored afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deviceplugin.driver import Cause, DriverError
from deviceplugin.inventory import Gpu
from deviceplugin.mps.keeper import Pace
from deviceplugin.mps.supervisor import Supervisor
from gpuslice.contract.names import GpuUuid

QUICK = Pace(answer=10, look=0.01, first_retry=0.02, last_retry=0.1, quit=5)


def gpu(index: int, *, parent: str | None = None) -> Gpu:
    return Gpu(
        uuid=GpuUuid(f"GPU-{index}"),
        index=index,
        product="NVIDIA L4",
        memory_mib=23034,
        mig_parent=None if parent is None else GpuUuid(parent),
    )


class Modes:
    """The driver's compute modes, and how often it was asked in vain."""

    def __init__(self) -> None:
        self.modes: dict[str, int] = {}
        self.error: DriverError | None = None
        self.refusals = 0

    def compute_mode(self, uuid: GpuUuid) -> int:
        return self.modes.get(uuid, 0)

    def set_compute_mode(self, uuid: GpuUuid, mode: int) -> None:
        if self.error is not None:
            self.refusals += 1
            raise self.error
        self.modes[uuid] = mode


def eventually(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.005)


@contextmanager
def supervised(driver: Modes, root: Path, program: str, *gpus: Gpu) -> Iterator[Supervisor]:
    made = Supervisor(driver, root, program, pace=QUICK)
    made.keep(gpus)
    try:
        yield made
    finally:
        made.stop()


def pid_of(root: Path, uuid: str) -> int:
    return int((root / uuid / "log" / "control.log").read_text().split()[0])


def is_running(supervisor: Supervisor, uuid: str = "GPU-0") -> bool:
    return supervisor.states[GpuUuid(uuid)].running


def test_each_gpu_has_a_daemon_of_its_own_and_is_exclusive_meanwhile(
    root: Path, program: str
) -> None:
    driver = Modes()
    driver.modes["GPU-1"] = 2
    with supervised(driver, root, program, gpu(0), gpu(1)) as supervisor:
        eventually(lambda: not supervisor.problem, "both run")
        assert driver.modes == {"GPU-0": 3, "GPU-1": 3}
        logs = [(root / f"GPU-{index}/log/control.log").read_text() for index in (0, 1)]
        assert [each.split()[1] for each in logs] == ["GPU-0", "GPU-1"]
        pids = [pid_of(root, "GPU-0"), pid_of(root, "GPU-1")]
        assert (root / "GPU-0" / "pipe").stat().st_mode & 0o777 == 0o777
    assert driver.modes == {"GPU-0": 0, "GPU-1": 2}
    assert json.loads((root / "compute-modes.json").read_text()) == {}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_daemon_that_dies_is_started_again_and_that_is_told(root: Path, program: str) -> None:
    with supervised(Modes(), root, program, gpu(0)) as supervisor:
        eventually(lambda: is_running(supervisor), "it runs")
        first = pid_of(root, "GPU-0")
        os.kill(first, signal.SIGKILL)
        eventually(lambda: supervisor.states[GpuUuid("GPU-0")].restarts == 1, "it is told")
        eventually(lambda: is_running(supervisor), "it runs again")
        assert pid_of(root, "GPU-0") != first


def test_a_daemon_that_never_starts_is_tried_at_growing_pauses_and_said(
    root: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_REFUSES", "1")  # the stand-in's own switch
    with supervised(Modes(), root, program, gpu(0)) as supervisor:
        eventually(lambda: supervisor.states[GpuUuid("GPU-0")].restarts >= 2, "tried again")
        assert "GPU-0: its control daemon ended with status 7" in supervisor.problem
        monkeypatch.delenv("STAND_IN_REFUSES")
    assert supervisor.states == {}


def test_a_missing_program_is_said(root: Path) -> None:
    with supervised(Modes(), root, str(root / "nothing"), gpu(0)) as supervisor:
        eventually(lambda: "can't be started" in supervisor.problem, "said")


def test_a_gpu_that_leaves_mps_is_restored_and_the_others_go_on(root: Path, program: str) -> None:
    driver = Modes()
    with supervised(driver, root, program, gpu(0), gpu(1)) as supervisor:
        eventually(lambda: not supervisor.problem, "both run")
        before = pid_of(root, "GPU-1")
        supervisor.keep([gpu(1)])
        assert driver.modes == {"GPU-0": 0, "GPU-1": 3}
        assert is_running(supervisor, "GPU-1")
        assert pid_of(root, "GPU-1") == before


def test_a_mig_instance_has_a_daemon_and_no_compute_mode(root: Path, program: str) -> None:
    driver = Modes()
    with supervised(driver, root, program, gpu(0, parent="GPU-x")) as supervisor:
        eventually(lambda: is_running(supervisor), "it runs")
        assert driver.modes == {}


def test_after_sudden_death_the_next_start_restores_what_was_before(
    root: Path, program: str
) -> None:
    """And ends the daemon that was left: it may live on where process ids are the node's."""
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.wire.deviceplugin.mps.test_mps_supervision import Modes, QUICK, gpu\n"
        "from deviceplugin.mps.supervisor import Supervisor\n"
        "driver = Modes()\n"
        "driver.modes['GPU-0'] = 1\n"
        "made = Supervisor(driver, Path(sys.argv[1]), sys.argv[2], pace=QUICK)\n"
        "made.keep([gpu(0)])\n"
        "while made.problem: time.sleep(0.01)\n"
        "print(driver.modes['GPU-0'], flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(root), program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as doomed:
        assert doomed.stdout is not None
        assert "3\n" in iter(doomed.stdout.readline, "")
        doomed.kill()
    left = pid_of(root, "GPU-0")
    os.kill(left, 0)
    assert json.loads((root / "compute-modes.json").read_text()) == {"GPU-0": 1}
    driver = Modes()
    driver.modes["GPU-0"] = 3
    with supervised(driver, root, program, gpu(0)) as supervisor:
        eventually(lambda: is_running(supervisor), "it runs")
        assert pid_of(root, "GPU-0") != left
        assert driver.modes["GPU-0"] == 3
    assert driver.modes["GPU-0"] == 1


def test_a_gpu_that_is_no_longer_shared_by_mps_after_sudden_death_is_restored(
    root: Path, program: str
) -> None:
    (root / "compute-modes.json").write_text('{"GPU-0": 0}')
    driver = Modes()
    driver.modes["GPU-0"] = 3
    driver.error = DriverError("not yet", cause=Cause.NO_DRIVER)
    with supervised(driver, root, program) as supervisor:
        assert driver.refusals == 1
        driver.error = None
        supervisor.keep([])
        assert driver.modes == {"GPU-0": 0}
    assert json.loads((root / "compute-modes.json").read_text()) == {}
