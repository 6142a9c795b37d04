# SPDX-License-Identifier: Apache-2.0
"""The plugin stays registered while kubelet comes and goes, wipes its folder, drops streams."""

from __future__ import annotations

import gc
import shutil
import socket
import threading
import time
from pathlib import Path

from gpuslice.sim.kubelet.bare import BareKubelet
from tests.wire.deviceplugin.kubelet.plug import Plug, eventually, gpu, plugged

ALL = (200, 200)


def is_up(plug: Plug) -> bool:
    return plug.healthy == ALL and plug.board.streaming


def test_it_registers_with_a_running_kubelet_at_once(kubelet: BareKubelet) -> None:
    """The server answers while its own Register call is pending."""
    kubelet.start()
    begun = time.monotonic()
    with plugged(kubelet, gpu(0), gpu(1)) as plug:
        eventually(lambda: is_up(plug), "200 healthy tokens")
        assert time.monotonic() - begun < 2
        assert kubelet.registrations == 1


def test_it_waits_for_a_kubelet_that_is_not_there(kubelet: BareKubelet) -> None:
    with plugged(kubelet, gpu(0), gpu(1)) as plug:
        eventually(lambda: plug.events, "a word about the wait")
        event, detail = plug.events[0]
        assert event == "waiting"
        assert str(kubelet.plugin_folder / "kubelet.sock") in detail
        kubelet.start()
        eventually(lambda: is_up(plug), "registered once kubelet is there")


def test_it_registers_again_after_a_kubelet_restart(kubelet: BareKubelet) -> None:
    kubelet.start()
    with plugged(kubelet, gpu(0), gpu(1)) as plug:
        eventually(lambda: is_up(plug), "first registration")
        for _ in range(3):
            kubelet.stop()
            kubelet.start()
            begun = time.monotonic()
            eventually(lambda: is_up(plug), "registered again")
            assert time.monotonic() - begun < 3


def test_it_registers_again_when_its_own_socket_is_deleted(kubelet: BareKubelet) -> None:
    kubelet.start()
    with plugged(kubelet, gpu(0), gpu(1)) as plug:
        eventually(lambda: is_up(plug), "first registration")
        for path in kubelet.plugin_folder.glob("gpuslice-*.sock"):
            path.unlink()
        eventually(lambda: kubelet.registrations == 2 and is_up(plug), "registered again", 5)
        assert any(event == "own-socket-gone" for event, _ in plug.events)


def test_a_socket_name_is_never_used_twice(kubelet: BareKubelet) -> None:
    """Kubelet takes a second registration of one socket for the first one."""
    kubelet.start()
    with plugged(kubelet, gpu(0), gpu(1)) as plug:
        eventually(lambda: is_up(plug), "first registration")
        plug.board.retire()
        eventually(lambda: kubelet.registrations == 2 and is_up(plug), "second")
    sockets = [detail for event, detail in plug.events if event == "registered"]
    assert len(set(sockets)) == len(sockets) == 2


def test_it_registers_again_when_its_stream_ends(kubelet: BareKubelet) -> None:
    """Kubelet never opens a stream again that has ended, and shows 0 tokens for ever."""
    kubelet.start()
    with plugged(kubelet, gpu(0), gpu(1)) as plug:
        eventually(lambda: is_up(plug), "first registration")
        plug.board.retire()
        eventually(lambda: kubelet.registrations == 2 and is_up(plug), "registered again", 5)


def test_it_finds_a_folder_that_was_replaced(kubelet: BareKubelet) -> None:
    """The folder's watch dies with the folder; the regular look remains."""
    kubelet.start()
    with plugged(kubelet, gpu(0), gpu(1)) as plug:
        eventually(lambda: is_up(plug), "first registration")
        kubelet.stop()
        shutil.rmtree(kubelet.plugin_folder)
        kubelet.start()
        eventually(lambda: is_up(plug), "registered in the new folder", 5)


def test_it_ends_at_once_and_takes_its_socket_along(kubelet: BareKubelet) -> None:
    kubelet.start()
    with plugged(kubelet, gpu(0), gpu(1)) as plug:
        eventually(lambda: is_up(plug), "registered")
        begun = time.monotonic()
        plug.registrar.stop()
        assert time.monotonic() - begun < 1
        assert not list(kubelet.plugin_folder.glob("gpuslice-*.sock"))
        eventually(lambda: plug.healthy == (200, 0), "kubelet noticed")


def test_dead_sockets_of_ours_are_removed_and_living_or_foreign_ones_stay(
    kubelet: BareKubelet,
) -> None:
    kubelet.start()
    folder = kubelet.plugin_folder

    def bound(name: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(folder / name))
        return made

    bound("gpuslice-dead.sock").close()
    bound("other.sock").close()
    with bound("gpuslice-alive.sock") as alive:
        alive.listen()
        with plugged(kubelet, gpu(0), gpu(1)) as plug:
            eventually(lambda: is_up(plug), "registered")
            assert not (folder / "gpuslice-dead.sock").exists()
            assert (folder / "gpuslice-alive.sock").exists()
            assert (folder / "other.sock").exists()


def test_it_registers_again_when_another_instance_s_end_unregisters_it(
    kubelet: BareKubelet,
) -> None:
    """A kubelet up to 1.36 drops by name: the old stream's end takes the new plugin along."""
    kubelet.start()
    with plugged(kubelet, gpu(0), gpu(1)) as old:
        eventually(lambda: is_up(old), "old one registered")
        with plugged(kubelet, gpu(0), gpu(1)) as new:
            eventually(lambda: kubelet.registrations >= 2 and is_up(new), "new one registered")
            old.registrar.stop()
            eventually(lambda: is_up(new), "new one is up in the end", 5)
            settled = kubelet.registrations
            assert new.board.streaming
            assert settled >= 2


def test_a_folder_wiped_twice_in_a_row_ends_in_one_registration(kubelet: BareKubelet) -> None:
    kubelet.start()
    with plugged(kubelet, gpu(0), gpu(1)) as plug:
        eventually(lambda: is_up(plug), "first registration")
        for count in (2, 3):
            for path in kubelet.plugin_folder.glob("gpuslice-*.sock"):
                path.unlink()
            eventually(lambda count=count: kubelet.registrations >= count, "registered again", 5)
        eventually(lambda: is_up(plug), "up", 5)
        assert len(list(kubelet.plugin_folder.glob("gpuslice-*.sock"))) == 1


def test_without_file_events_it_finds_out_by_looking(kubelet: BareKubelet) -> None:
    """A node may be out of inotify instances."""
    kubelet.start()
    with plugged(kubelet, gpu(0), gpu(1), hears=False) as plug:
        eventually(lambda: is_up(plug), "first registration")
        for path in kubelet.plugin_folder.glob("gpuslice-*.sock"):
            path.unlink()
        eventually(lambda: kubelet.registrations == 2 and is_up(plug), "registered again", 5)
        kubelet.stop()
        kubelet.start()
        eventually(lambda: is_up(plug), "registered with the new kubelet", 5)


def test_many_kubelet_restarts_leave_nothing_behind(kubelet: BareKubelet) -> None:
    """Descriptors and threads stay flat."""

    def burden() -> tuple[int, int]:
        gc.collect()  # the fake kubelet's former servers, whose threads end with them
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    kubelet.start()
    with plugged(kubelet, gpu(0), gpu(1)) as plug:

        def restart() -> None:
            kubelet.stop()
            kubelet.start()
            eventually(lambda: is_up(plug), "registered again")

        for _ in range(3):
            restart()
        before = burden()
        for _ in range(12):
            restart()
        # Of a pool's last threads some may be ending; a leak of one each would be twelve.
        eventually(
            lambda: all(now <= then + 6 for now, then in zip(burden(), before, strict=True)),
            f"no more descriptors and threads than {before}",
        )
