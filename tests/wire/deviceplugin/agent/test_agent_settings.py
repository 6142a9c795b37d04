# SPDX-License-Identifier: Apache-2.0
"""Means, modes and overrides on a node, and their change while pods run."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from deviceplugin.daemon import Daemon
from gpuslice.contract import pods
from gpuslice.contract.names import GpuUuid
from gpuslice.runtime import settings
from gpuslice.runtime.kube.resources import EVENTS, GPU_NODES, NODES
from tests.wire.deviceplugin.agent.world import NODE, World, eventually

STAND_IN = Path(__file__).parents[1] / "mps" / "nvidia_cuda_mps_control.py"


def started(world: World, **overrides: object) -> Daemon:
    world.kubelet.start()
    daemon = world.plugin(**overrides)
    eventually(world.is_serving, "serving")
    return daemon


def environment(world: World, name: str) -> dict[str, str]:
    eventually(lambda: world.phase(name) == "Running", f"{name} runs")
    return dict(world.kubelet.container_env("default", name, "main"))


def test_a_reload_changes_what_new_containers_get_and_no_claim(world: World) -> None:
    daemon = started(world)
    world.share("0.3", 30)
    world.place("a", "0.3", 30, 0)
    assert "TF_FORCE_GPU_ALLOW_GROWTH" in environment(world, "a")
    eventually(lambda: world.states() == {"a": "Held"}, "held")
    before = world.ledger()
    daemon.reload(
        settings.load(
            None,
            {
                "hints.tensorflow": False,
                "shares": ["0.5", "0.125"],
                "slicesPerGpu": 10,
                "devicePlugin.kubeletRoot": str(world.root / "kubelet"),
            },
        )
    )
    eventually(lambda: set(world.fits()) == {"0.5", "0.125", "0.3"}, "the new standing shares")
    assert world.ledger() == before
    world.place("b", "0.3", 30, 0)
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in environment(world, "b")
    assert world.kubelet.bare.counts()[0]["nvidia.com/gpu-slice"] == (200, 200)


def test_by_cdi_the_spec_is_there_before_the_first_pod(world: World) -> None:
    """A container runtime fails a container whose name it can't resolve."""
    folder = world.root / "cdi"
    daemon = started(
        world,
        **{
            "devicePlugin.deviceInjection": "cdi",
            "devicePlugin.cdiDir": str(folder),
            "devicePlugin.driverRoot": str(world.root),
        },
    )
    spec = json.loads((folder / "gpuslice.dev-gpu.json").read_text())
    assert [each["name"] for each in spec["devices"]] == ["GPU-0", "GPU-1"]
    world.share("0.3", 30)
    world.place("a", "0.3", 30, 1)
    assert environment(world, "a")["NVIDIA_VISIBLE_DEVICES"] == "void"
    uid = pods.ref(world.pod("a")).uid
    (answer,) = world.kubelet.bare.responses(uid, "main")
    assert [each.name for each in answer.cdi_devices] == ["gpuslice.dev/gpu=GPU-1"]
    daemon.reload(settings.load(None, {}))
    assert not (folder / "gpuslice.dev-gpu.json").exists()


def test_a_cdi_spec_that_cannot_be_written_is_told_before_any_pod_needs_it(world: World) -> None:
    (world.root / "cdi").touch()
    daemon = started(
        world,
        **{
            "devicePlugin.deviceInjection": "cdi",
            "devicePlugin.cdiDir": str(world.root / "cdi"),
        },
    )
    assert "cdi: the CDI spec" in daemon.ready()[1]
    eventually(
        lambda: "WaitingForCdi" in {each["reason"] for each in world.client.list(EVENTS)},
        "an Event",
    )


def test_a_node_s_label_chooses_its_mode_and_mps_is_visible(world: World, root: Path) -> None:
    program = root / "control"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{STAND_IN}" "$@"\n')
    program.chmod(0o755)
    daemon = started(
        world,
        **{
            "devicePlugin.mps.root": str(root / "mps"),
            "devicePlugin.mps.control": str(program),
            "devicePlugin.overrides": [
                {"nodeLabels": {"pool": "tight"}, "indexes": [1], "mode": "mps"}
            ],
        },
    )

    def mode() -> tuple[str, str]:
        label = pods.meta_of(world.client.get(NODES, NODE))["labels"]["gpuslice.dev/mode"]
        return str(world.client.get(GPU_NODES, NODE)["spec"]["mode"]), str(label)

    assert mode() == ("time-slicing", "time-slicing")
    world.client.patch(NODES, NODE, {"metadata": {"labels": {"pool": "tight"}}})
    eventually(lambda: mode() == ("mixed", "mixed"), "the mode is shown")
    eventually(lambda: daemon.ready() == (True, "ok"), "its daemon runs")
    assert list(daemon.sharing.mps.states) == [GpuUuid("GPU-1")]
    world.share("0.3", 30)
    world.place("a", "0.3", 30, 1)
    said = environment(world, "a")
    assert said["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert said["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=6910M"
    world.client.patch(NODES, NODE, {"metadata": {"labels": {"pool": None}}})
    eventually(lambda: mode()[0] == "time-slicing", "back again")
    eventually(lambda: not daemon.sharing.mps.states, "its daemon ended")
    shutil.rmtree(root / "mps", ignore_errors=True)
