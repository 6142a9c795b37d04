# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuslice.sim.kubelet.bare import BareKubelet
from tests.wire.sim.toyplugin import Hours, Plug, build_container, build_pod, eventually

NO_DEVICES = (
    "Allocate failed due to no healthy devices present; "
    "cannot allocate unhealthy devices example.com/thing, which is unexpected"
)


def things(bare: BareKubelet) -> tuple[int, int] | None:
    return bare.counts()[0].get("example.com/thing")


def saved(root: Path) -> Any:
    return json.loads((root / "device-plugins" / "kubelet_internal_checkpoint").read_text())["Data"]


def test_the_checkpoint_tells_holdings_and_healthy_devices(
    bare: BareKubelet, plugged: Plug, root: Path
) -> None:
    plugged(["a", ("b", "Unhealthy")])
    assert saved(root) == {
        "PodDeviceEntries": [],
        "RegisteredDevices": {"example.com/thing": ["a"]},
    }
    bare.admit(build_pod("one"))
    (entry,) = saved(root)["PodDeviceEntries"]
    assert entry["PodUID"] == "uid-one"
    assert entry["ContainerName"] == "main"
    assert entry["ResourceName"] == "example.com/thing"
    assert entry["DeviceIDs"] == {"-1": ["a"]}


def test_the_checkpoint_keeps_a_gone_pod_until_something_else_is_written(
    bare: BareKubelet, plugged: Plug, root: Path
) -> None:
    plugged(["a", "b"])
    bare.admit(build_pod("one"))
    bare.release("uid-one")
    assert len(saved(root)["PodDeviceEntries"]) == 1
    bare.admit(build_pod("two"))
    assert [each["PodUID"] for each in saved(root)["PodDeviceEntries"]] == ["uid-two"]


def test_after_a_restart_a_running_pod_is_accepted_without_its_plugin(
    bare: BareKubelet, plugged: Plug
) -> None:
    plugged(["a", "b"])
    bare.admit(build_pod("one"))
    before = bare.allocations()
    assert bare.restart() == {"uid-one": None}
    assert bare.allocations() == before
    assert things(bare) == (0, 0)


def test_the_pass_for_running_containers_ends_when_all_pods_have_been_seen(
    bare: BareKubelet, plugged: Plug
) -> None:
    plugged(["a"])
    bare.admit(build_pod("one"))
    assert bare.restart() == {"uid-one": None}
    again = bare.admit(build_pod("one"))
    assert again is not None
    assert again.message == NO_DEVICES


def test_a_kubelet_that_stops_forgets_its_pods(bare: BareKubelet, plugged: Plug) -> None:
    plugged(["a"])
    bare.admit(build_pod("one"))
    bare.stop()
    bare.start()
    assert bare.active_pods() == []
    assert bare.allocations() == {}


def test_after_a_restart_the_plugin_that_returns_finds_its_devices_in_use(
    bare: BareKubelet, plugged: Plug, new_plugin: Plug
) -> None:
    plugged(["a", "b"]).stop()
    bare.admit(build_pod("none", 0))
    bare.restart()
    plugin = new_plugin(["a", "b"])
    plugin.register()
    eventually(lambda: things(bare) == (2, 2))
    assert bare.admit(build_pod("one", 1)) is None
    held = bare.allocations()["uid-one"]
    bare.restart()
    again = new_plugin(["a", "b"], prefers=lambda available, must, size: available)
    again.register()
    eventually(lambda: things(bare) == (2, 2))
    assert bare.allocations()["uid-one"] == held
    assert bare.admit(build_pod("two", 1)) is None
    assert again.asked("preferred") == [({"a", "b"} - held["main"]["example.com/thing"], set(), 1)]


def test_after_a_restart_the_environment_is_the_one_of_before(
    bare: BareKubelet, plugged: Plug
) -> None:
    plugged(["a"])
    bare.admit(build_pod("one"))
    bare.restart()
    assert bare.container_env("uid-one", "main") == {"THINGS": "a", "FROM": "plugin"}


def test_a_completed_init_container_with_devices_gets_a_running_pod_refused(
    bare: BareKubelet, plugged: Plug
) -> None:
    plugged(["a"])
    assert bare.admit(build_pod("one", 1, init=[build_container("init", 1)])) is None
    assert bare.restart()["uid-one"].message == NO_DEVICES


def test_a_container_that_ended_while_kubelet_was_away_gets_its_pod_refused(
    bare: BareKubelet, plugged: Plug
) -> None:
    plugged(["a"])
    bare.admit(build_pod("one"))
    bare.end_container("uid-one", "main")
    assert bare.restart()["uid-one"].message == NO_DEVICES


def test_a_reboot_refuses_every_pod_with_devices_until_the_plugin_is_back(
    bare: BareKubelet, plugged: Plug
) -> None:
    plugged(["a", "b"])
    bare.admit(build_pod("one"))
    bare.admit(build_pod("plain", 0))
    verdicts = bare.reboot()
    assert verdicts["uid-one"].reason == "UnexpectedAdmissionError"
    assert verdicts["uid-one"].message == NO_DEVICES
    assert verdicts["uid-plain"] is None
    assert bare.allocations() == {}


def test_a_reboot_that_loses_the_checkpoint_runs_pods_without_devices(
    bare: BareKubelet, plugged: Plug, root: Path
) -> None:
    plugged(["a"])
    bare.admit(build_pod("one"))
    (root / "device-plugins" / "kubelet_internal_checkpoint").unlink()
    assert not bare.has_checkpoint()
    assert bare.reboot() == {"uid-one": None}
    assert bare.allocations() == {}


def test_a_corrupt_checkpoint_is_left_aside(bare: BareKubelet, plugged: Plug, root: Path) -> None:
    plugged(["a"])
    path = root / "device-plugins" / "kubelet_internal_checkpoint"
    path.write_text(path.read_text().replace('"a"', '"z"'))
    bare.restart()
    assert things(bare) is None


def test_a_resource_whose_plugin_does_not_return_is_given_up(
    bare: BareKubelet, plugged: Plug, clock: Hours
) -> None:
    plugged(["a"])
    bare.restart()
    assert things(bare) == (0, 0)
    clock.now += 301
    assert bare.counts() == ({}, frozenset({"example.com/thing"}))


def test_a_plugin_restart_changes_no_holding(
    bare: BareKubelet, plugged: Plug, new_plugin: Plug
) -> None:
    plugin = plugged(["a", "b"])
    bare.admit(build_pod("one"))
    held = bare.allocations()
    plugin.stop()
    eventually(lambda: things(bare) == (2, 0))
    assert "no healthy devices present" in bare.admit(build_pod("two")).message
    new_plugin(["a", "b"]).register()
    eventually(lambda: things(bare) == (2, 2))
    assert bare.allocations() == held
