# SPDX-License-Identifier: Apache-2.0
"""Kubelet restarts, a thousand by default: `make soak-deviceplugin`.

The command as a process beside an embedded kubelet that is killed and started again. Descriptors,
threads and memory must be as flat at the end as after the first tenth.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuslice.contract.names import SLICE_RESOURCE
from gpuslice.sim.kubelet.bare import BareKubelet
from gpuslice.sim.nvml.driver_root import DriverRoot, build_library
from gpuslice.sim.nvml.machine import Machine, MachineGpu
from tests.load.deviceplugin_bench import proc_numbers, say
from tests.wire.deviceplugin.agent.world import NODE, World, eventually

SPARE = 10
"""Descriptors and threads that may be more: those of a pool's last calls."""
SPARE_MIB = 8.0


def burden(pid: int) -> tuple[int, int, float]:
    """Return a process's descriptors, threads and MiB."""
    proc = Path(f"/proc/{pid}")
    return (
        len(list((proc / "fd").iterdir())),
        len(list((proc / "task").iterdir())),
        proc_numbers(pid)[0],
    )


def is_flat(first: tuple[int, int, float], last: tuple[int, int, float]) -> bool:
    """Whether nothing has grown."""
    return (
        last[0] <= first[0] + SPARE
        and last[1] <= first[1] + SPARE
        and last[2] <= first[2] + SPARE_MIB
    )


def soak(kubelet: BareKubelet, pid: int, restarts: int) -> bool:
    """Restart a kubelet so often; print as it goes, and return whether all stayed flat."""
    first: tuple[int, int, float] | None = None
    worst = 0.0
    for number in range(1, restarts + 1):
        kubelet.stop()
        kubelet.start()
        begun = time.monotonic()
        eventually(
            lambda: kubelet.counts()[0].get(SLICE_RESOURCE) == (200, 200), f"up again: {number}", 20
        )
        worst = max(worst, time.monotonic() - begun)
        if number == max(1, restarts // 10):
            first = burden(pid)
        if number % max(1, restarts // 10) == 0:
            fds, threads, mib = burden(pid)
            say(
                f"{number:5} restarts: {fds} descriptors, {threads} threads, {mib:.1f} MiB, "
                f"longest away {worst:.2f} s",
            )
    assert first is not None
    last = burden(pid)
    return is_flat(first, last)


def main() -> int:
    """Soak; return 1 if something grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=1000)
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    (folder / "w").mkdir()
    machine = Machine(gpus=(MachineGpu(uuid="GPU-0"), MachineGpu(uuid="GPU-1")))
    driver = DriverRoot.lay_out(folder / "driver", machine, library=build_library(folder / "lib"))
    world = World(folder / "w")
    world.kubelet.start()
    command = [sys.executable, "-m", "deviceplugin", "--node-name", NODE, "--metrics-port", "0"]
    command += ["--kubeconfig", str(world.kubeconfig), "--driver-root", str(driver.path)]
    command += ["--kubelet-root", str(world.root / "kubelet")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as plugin:
        try:
            eventually(world.is_serving, "serving", 30)
            flat = soak(world.kubelet.bare, plugin.pid, chosen.restarts)
        finally:
            plugin.terminate()
            plugin.wait(30)
            world.end()
            shutil.rmtree(folder, ignore_errors=True)
    say("flat" if flat else "something grew")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
