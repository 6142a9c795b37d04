# SPDX-License-Identifier: Apache-2.0
"""The command as a process of its own, with the C library that serves GPUs as the driver's does."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract.names import SLICE_RESOURCE
from gpuslice.runtime.kube.resources import EVENTS
from gpuslice.sim.nvml.driver_root import DriverRoot
from gpuslice.sim.nvml.machine import Answer, Machine, MachineGpu
from tests.wire.deviceplugin.agent.world import NODE, World, eventually

MACHINE = Machine(gpus=(MachineGpu(uuid="GPU-0"), MachineGpu(uuid="GPU-1")))


class Process:
    """A device plugin, and what it logs."""

    def __init__(self, world: World, driver_root: Path) -> None:
        self.begun = time.monotonic()
        self.lines: list[dict[str, Any]] = []
        command = [sys.executable, "-m", "deviceplugin", "--kubeconfig", str(world.kubeconfig)]
        command += ["--node-name", NODE, "--driver-root", str(driver_root)]
        command += ["--kubelet-root", str(world.root / "kubelet"), "--metrics-port", "0"]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.lines.append(json.loads(line))

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    def get(self, path: str) -> tuple[int, str]:
        eventually(lambda: self.said("started"), "started")
        url = f"http://127.0.0.1:{self.said('started')[0]['metrics_port']}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        status = self.popen.wait(30)
        self._reader.join(5)
        assert self.popen.stderr is not None
        self.popen.stderr.close()
        return status


@pytest.fixture
def running(world: World, nvml_library: Path, root: Path) -> Iterator[Process]:
    world.kubelet.start()
    driver = DriverRoot.lay_out(root / "driver", MACHINE, library=nvml_library)
    made = Process(world, driver.path)
    yield made
    made.end()


def counts(world: World) -> tuple[int, int]:
    return world.kubelet.bare.counts()[0].get(SLICE_RESOURCE, (0, 0))


def test_it_is_registered_within_two_seconds_and_ends_in_order(
    world: World, running: Process
) -> None:
    eventually(lambda: counts(world) == (200, 200), "registered")
    assert time.monotonic() - running.begun < 10  # two seconds where no other tests run beside it
    eventually(world.is_serving, "serving")
    code, metrics = running.get("/metrics")
    assert code == 200
    assert 'gpuslice_slices_capacity{gpu_uuid="GPU-1",node="node-a"} 100.0' in metrics
    assert running.get("/readyz") == (200, "ok\n")
    assert running.get("/healthz")[0] == 200
    assert running.end() == 0
    ledger = world.ledger()
    assert ledger is not None
    assert not ledger.serving
    assert not list((world.root / "kubelet" / "device-plugins").glob("gpuslice-*.sock"))


def test_sudden_death_and_a_new_start_end_in_the_same_ledger(
    world: World, nvml_library: Path, root: Path
) -> None:
    world.kubelet.start()
    driver = DriverRoot.lay_out(root / "driver", MACHINE, library=nvml_library)
    first = Process(world, driver.path)
    eventually(world.is_serving, "serving")
    world.share("0.6", 60)
    world.place("a", "0.6", 60, 1)
    eventually(lambda: world.states() == {"a": "Held"}, "held")
    before = world.ledger()
    first.end(signal.SIGKILL)
    eventually(lambda: counts(world) == (200, 0), "kubelet noticed")
    second = Process(world, driver.path)
    try:
        eventually(lambda: counts(world) == (200, 200), "registered again")
        eventually(lambda: world.ledger() == before, "the same ledger")
        assert world.places() == world.held()
    finally:
        assert second.end() == 0


def test_a_node_without_a_driver_waits_for_it(world: World, nvml_library: Path, root: Path) -> None:
    world.kubelet.start()
    (root / "driver").mkdir()
    made = Process(world, root / "driver")
    try:
        eventually(lambda: made.said("started"), "started")
        code, text = made.get("/readyz")
        assert code == 503
        assert "driver" in text
        laid_out = DriverRoot.lay_out(root / "elsewhere", MACHINE, library=nvml_library)
        shutil.copytree(laid_out.path, root / "driver", dirs_exist_ok=True, symlinks=True)
        eventually(lambda: counts(world) == (200, 200), "registered with the driver's GPUs", 20)
    finally:
        assert made.end() == 0


def test_settings_that_are_wrong_are_named_and_end_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("slicesPerGpu: 7\n")
    command = [sys.executable, "-m", "deviceplugin", "--node-name", "n", "--settings", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert "slicesPerGpu" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_one_line_and_the_end(world: World, tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "deviceplugin", "--node-name", NODE, "--kubeconfig"]
        command += [str(world.kubeconfig), "--kubelet-root", str(tmp_path)]
        command += ["--driver-root", str(tmp_path), "--metrics-port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert f"can't listen on port {port}" in done.stderr
    assert "devicePlugin.metricsPort" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_replaced_driver_ends_it_in_order_for_a_process_that_loads_the_new_one(
    world: World, running: Process, root: Path, nvml_library: Path
) -> None:
    """As long as the file is the old one, a new process would be no wiser: it waits."""
    eventually(world.is_serving, "serving")
    driver = DriverRoot(root / "driver")
    driver.fail("nvml*", Answer.LIB_RM_VERSION_MISMATCH)
    eventually(lambda: "restart this pod" in running.get("/readyz")[1], "it says what it waits for")
    assert 'gpuslice_waiting{what="driver"} 1.0' in running.get("/metrics")[1]
    assert running.popen.poll() is None
    fresh = driver.library.with_suffix(".new")
    shutil.copyfile(nvml_library, fresh)
    fresh.replace(driver.library)
    assert running.popen.wait(30) == 0
    events = {each["reason"] for each in world.client.list(EVENTS)}
    assert "WaitingForDriver" in events
