# SPDX-License-Identifier: Apache-2.0
"""A reload takes what can change under running pods, and names what can't."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deviceplugin import flags
from deviceplugin.reloading import FileChanges, Source, reloaded
from gpuslice.runtime import settings
from gpuslice.runtime.settings import SettingsError

OLD = settings.load()


def test_what_can_change_does() -> None:
    new = settings.load(
        None, {"mode": "mps", "shares": ["0.5"], "devicePlugin.deviceInjection": "cdi"}
    )
    assert reloaded(OLD, new) == (new, ())


def test_what_tokens_and_sockets_rest_on_stays_and_is_named() -> None:
    new = settings.load(
        None,
        {
            "slicesPerGpu": 10,
            "mode": "mps",
            "shares": ["0.5"],
            "devicePlugin.driverRoot": "/x",
            "devicePlugin.mps.root": "/y",
        },
    )
    chosen, keys = reloaded(OLD, new)
    assert keys == ("slicesPerGpu", "devicePlugin.driverRoot", "devicePlugin.mps.root")
    assert chosen.slices_per_gpu == 100
    assert chosen.device_plugin == OLD.device_plugin
    assert (chosen.mode, chosen.shares) == ("mps", ("0.5",))


def test_flags_win_over_the_file_at_each_load(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("devicePlugin: {deviceInjection: cdi, healthPollSeconds: 1}\n")
    said = flags.flagged(
        {
            "device_injection": "device-nodes",
            "ignored_xids": "13,31",
            "health_recovery_seconds": "30",
            "driver_root": "/a b",
            "watch_use": "true",
            "mode": "mps",
            "metrics_port": None,
        }
    )
    source = Source(path, said)
    own = source.load().device_plugin
    assert (own.device_injection, own.ignored_xids, own.health_recovery_seconds) == (
        "device-nodes",
        (13, 31),
        30,
    )
    assert (own.driver_root, own.watch_use, own.health_poll_seconds) == ("/a b", True, 1)
    path.write_text("devicePlugin: {deviceInjection: cdi, healthPollSeconds: 2}\n")
    own = source.load().device_plugin
    assert (own.device_injection, own.health_poll_seconds) == ("device-nodes", 2)
    assert source.load().mode == "mps"


def test_a_flag_s_bad_value_is_named_like_the_file_s() -> None:
    said = flags.flagged({"device_injection": "magic"})
    with pytest.raises(SettingsError, match=r"devicePlugin\.deviceInjection: 'magic'"):
        Source(None, said).load()


def test_a_file_s_change_is_heard_of_once(tmp_path: Path) -> None:
    """A ConfigMap's files are links that are turned over as a whole."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    link = tmp_path / "settings.yaml"
    link.symlink_to("one")
    heard, times = threading.Event(), []

    def on_change() -> None:
        times.append(1)
        heard.set()

    changes = FileChanges(link, on_change, every_seconds=0.005)
    changes.start()
    try:
        fresh = tmp_path / "fresh"
        fresh.symlink_to("two")
        fresh.replace(link)
        assert heard.wait(10)
    finally:
        changes.stop()
    assert times == [1]
