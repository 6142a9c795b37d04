# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
import time
from pathlib import Path

import grpc
import pytest

from gpuslice.sim.kubelet.bare import BareKubelet
from tests.wire.sim.toyplugin import Hours, Plug, build_pod, eventually


def things(bare: BareKubelet) -> tuple[int, int] | None:
    return bare.counts()[0].get("example.com/thing")


def test_a_registered_plugins_devices_are_counted(bare: BareKubelet, plugged: Plug) -> None:
    plugged(["a", ("b", "Unhealthy"), "c"])
    assert things(bare) == (3, 2)


def test_the_options_are_asked_inside_register(bare: BareKubelet, new_plugin: Plug) -> None:
    plugin = new_plugin()
    plugin.register()
    assert plugin.asked("options") == [None]


def test_a_failing_options_call_fails_the_registration(bare: BareKubelet, new_plugin: Plug) -> None:
    plugin = new_plugin(options_error="not today")
    with pytest.raises(grpc.RpcError) as caught:
        plugin.register()
    assert "failed to get device plugin options" in caught.value.details()
    assert "code = Internal desc = not today" in caught.value.details()
    assert plugin.asked("list") == []
    assert len(plugin.calls) == 1
    assert things(bare) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"version": "v1"}, 'API version "v1" is not supported', id="version"),
        pytest.param({"resource_name": "gpu"}, 'ResourceName "gpu" is invalid', id="no domain"),
        pytest.param(
            {"resource_name": "kubernetes.io/gpu"}, "is invalid", id="Kubernetes' own domain"
        ),
        pytest.param(
            {"resource_name": "x.kubernetes.io/gpu"}, "is invalid", id="a part of that domain"
        ),
        pytest.param({"resource_name": "a.b/" + "x" * 64}, "is invalid", id="too long"),
    ],
)
def test_a_bad_registration_is_refused(
    bare: BareKubelet, new_plugin: Plug, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        new_plugin().register(**changes)
    assert message in caught.value.details()
    assert caught.value.code() is grpc.StatusCode.UNKNOWN


def test_a_new_list_replaces_the_one_before(bare: BareKubelet, plugged: Plug) -> None:
    plugin = plugged(["a", "b"])
    plugin.publish(["b", "c", "d"])
    eventually(lambda: things(bare) == (3, 3))


def test_health_goes_both_ways(bare: BareKubelet, plugged: Plug) -> None:
    plugin = plugged(["a", "b", "c", "d"])
    for bad in (1, 0, 2, 1, 0):
        plugin.publish([(each, "Unhealthy") for each in "abcd"[:bad]] + list("abcd"[bad:]))
        eventually(lambda bad=bad: things(bare) == (4, 4 - bad))


def test_the_end_of_the_stream_makes_all_devices_unhealthy_and_nobody_asks_again(
    bare: BareKubelet, plugged: Plug, clock: Hours
) -> None:
    plugin = plugged(["a", "b"])
    plugin.end_streams()
    eventually(lambda: things(bare) == (2, 0))
    asked = len(plugin.calls)
    clock.now += 299
    assert bare.counts() == ({"example.com/thing": (2, 0)}, frozenset())
    clock.now += 2
    assert bare.counts() == ({}, frozenset({"example.com/thing"}))
    assert bare.counts() == ({}, frozenset())
    assert len(plugin.calls) == asked


def test_a_stream_that_fails_at_once_leaves_a_resource_without_devices(
    bare: BareKubelet, new_plugin: Plug
) -> None:
    plugin = new_plugin(stream_error="broken")
    plugin.register()
    eventually(lambda: things(bare) == (0, 0))
    assert [name for name, _ in plugin.calls] == ["options", "list"]


def test_a_plugin_that_stops_is_away(bare: BareKubelet, plugged: Plug) -> None:
    plugged(["a", "b"]).stop()
    eventually(lambda: things(bare) == (2, 0))


def test_a_list_of_more_than_four_mebibytes_ends_the_stream(
    bare: BareKubelet, plugged: Plug
) -> None:
    plugin = plugged(["a"])
    plugin.publish([f"{number:060}" for number in range(70_000)])
    eventually(lambda: things(bare) == (1, 0))


def test_the_last_registration_of_a_resource_wins(
    bare: BareKubelet, plugged: Plug, new_plugin: Plug
) -> None:
    plugged(["a", "b"])
    second = new_plugin(["c", "d", "e"])
    second.register()
    eventually(lambda: things(bare) == (3, 3))
    assert bare.admit(build_pod("one")) is None
    assert len(second.asked("allocate")) == 1


def test_the_end_of_an_old_stream_disconnects_the_new_plugin_too(
    bare: BareKubelet, plugged: Plug, new_plugin: Plug
) -> None:
    """Up to Kubernetes 1.36; a plugin must stop its old server before it registers again."""
    first = plugged(["a", "b"])
    second = new_plugin(["a", "b"])
    second.register()
    eventually(lambda: second.asked("list"))
    first.stop()
    eventually(lambda: things(bare) == (2, 0))


def test_a_later_kubelet_keeps_the_new_plugin_when_an_old_stream_ends(
    root: Path, new_plugin: Plug
) -> None:
    from gpuslice.sim.kubelet.quirks import Quirks

    kubelet = BareKubelet(root, quirks=Quirks(old_stream_ends_new_plugin=False))
    kubelet.start()
    try:
        first = new_plugin(["a"])
        first.register()
        second = new_plugin(["a", "b"])
        second.register()
        eventually(lambda: things(kubelet) == (2, 2))
        first.stop()
        eventually(lambda: len(kubelet._registration._every) == 1)
        assert things(kubelet) == (2, 2)
    finally:
        kubelet.stop()


def test_start_removes_sockets_but_no_files_and_nothing_in_folders_below(root: Path) -> None:
    folder = root / "device-plugins"
    (folder / "below").mkdir(parents=True)
    sockets = []
    for path in (folder / "old.sock", folder / "below" / "old.sock"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        sockets.append(listener)
    (folder / "kubelet_internal_checkpoint").write_text("kept")
    kubelet = BareKubelet(root)
    kubelet.start()
    try:
        left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    finally:
        kubelet.stop()
        for listener in sockets:
            listener.close()
    assert left == ["below", "below/old.sock", "kubelet.sock", "kubelet_internal_checkpoint"]


def test_a_plugin_in_a_folder_below_can_register(
    bare: BareKubelet, new_plugin: Plug, root: Path
) -> None:
    (root / "device-plugins" / "below").mkdir()
    plugin = new_plugin(["a"], socket="below/toy.sock")
    plugin.register()
    eventually(lambda: things(bare) == (1, 1))


def test_stopping_takes_less_than_a_second_and_leaves_no_socket(
    bare: BareKubelet, plugged: Plug, root: Path
) -> None:
    plugged(["a", "b"])
    began = time.monotonic()
    bare.stop()
    assert time.monotonic() - began < 1
    assert not (root / "device-plugins" / "kubelet.sock").exists()
    assert not (root / "pod-resources" / "kubelet.sock").exists()


def test_a_kubelet_can_be_restarted_many_times_on_the_same_socket(
    bare: BareKubelet, new_plugin: Plug
) -> None:
    for _ in range(5):
        bare.restart()
        new_plugin(["a", "b"]).register()
        eventually(lambda: things(bare) == (2, 2))
