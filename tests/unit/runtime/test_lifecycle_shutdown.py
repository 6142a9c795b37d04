# SPDX-License-Identifier: Apache-2.0
"""How a process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from gpuslice.runtime.lifecycle import Lifecycle


def test_parts_stop_in_the_reverse_order_of_their_start() -> None:
    """What was started on top of another ends before it."""
    order: list[str] = []
    life = Lifecycle()
    for name in ("client", "cache", "server"):
        life.add(name, lambda name=name: order.append(name))  # type: ignore[misc]  # binds now
    assert life.shut_down()
    assert order == ["server", "cache", "client"]


def test_the_end_is_known_before_the_first_part_stops() -> None:
    """Loops that wait on the event leave by themselves."""
    life = Lifecycle()
    seen: list[bool] = []
    life.add("part", lambda: seen.append(life.stopping.is_set()))
    life.shut_down()
    assert seen == [True]


def test_a_part_that_hangs_holds_the_others_up_for_its_deadline_only() -> None:
    """The exit code says that something was wrong."""
    go_on = threading.Event()
    stopped: list[str] = []
    life = Lifecycle()
    life.add("first", lambda: stopped.append("first"))
    life.add("hangs", lambda: go_on.wait(30), deadline_seconds=0.1)
    began = time.monotonic()
    assert not life.shut_down()
    assert time.monotonic() - began < 1.0
    assert stopped == ["first"]
    go_on.set()


def test_a_part_that_fails_does_not_keep_the_others_from_stopping() -> None:
    """It is logged, and told by the exit code."""
    stopped: list[str] = []

    def fails() -> None:
        raise RuntimeError("broken")

    life = Lifecycle()
    life.add("first", lambda: stopped.append("first"))
    life.add("fails", fails)
    assert not life.shut_down()
    assert stopped == ["first"]


def test_any_thread_may_end_the_process() -> None:
    """A part that can't go on, say."""
    life = Lifecycle()
    threading.Timer(0.05, lambda: life.ask_to_stop("enough")).start()
    assert life.run() == 0


def test_a_signal_ends_it_and_a_hangup_reloads() -> None:
    """Both are handled where the process waits, not inside the handler."""
    life = Lifecycle()
    reloads: list[str] = []
    threads: list[int] = []

    def reload() -> None:
        reloads.append("reload")
        threads.append(threading.get_ident())
        if len(reloads) == 1:
            raise RuntimeError("a bad new file")
        signal.raise_signal(signal.SIGTERM)

    kept = {number: signal.getsignal(number) for number in (1, 2, 15)}
    try:
        life.catch_signals()
        life.on_hangup(reload)
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert life.run() == 0
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert reloads == ["reload", "reload"]
    assert set(threads) == {threading.get_ident()}


def test_a_second_signal_exits_at_once() -> None:
    """Whoever presses Ctrl-C twice means it."""
    exits: list[int] = []
    life = Lifecycle(exit_now=exits.append)
    kept = {number: signal.getsignal(number) for number in (1, 2, 15)}
    try:
        life.catch_signals()
        signal.raise_signal(signal.SIGINT)
        assert exits == []
        signal.raise_signal(signal.SIGINT)
        assert exits == [130]
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def test_a_real_process_ends_on_sigterm_at_once() -> None:
    """As kubelet ends it."""
    program = (
        "from gpuslice.runtime.lifecycle import Lifecycle\n"
        "life = Lifecycle()\n"
        "life.catch_signals()\n"
        "print('ready', flush=True)\n"
        "raise SystemExit(life.run())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(5) == 0
