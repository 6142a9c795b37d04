# SPDX-License-Identifier: Apache-2.0
"""How a process ends: on a signal or a wish, part by part, in the reverse order of the start."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Final

from gpuslice.runtime import logs

log = logs.get(__name__)

PART_SECONDS: Final = 1.0
_HANGUP: Final = "hangup"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    name: str
    stop: Callable[[], object]
    deadline_seconds: float


class Lifecycle:
    """Waits for the end of a process, and brings it about in order.

    Args:
        clock: seconds, only ever forwards.
        exit_now: ends the process at once; for a second signal.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        exit_now: Callable[[int], object] = os._exit,
    ) -> None:
        self.stopping = threading.Event()
        """Set when the end begins: loops wait on it instead of sleeping."""
        self._clock = clock
        self._exit_now = exit_now
        self._parts: list[_Part] = []
        self._reload: Callable[[], object] | None = None
        # A signal handler may run while this same thread holds an Event's lock; SimpleQueue.put is
        # the one primitive that is made for that.
        self._wishes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_signalled = False

    def add(
        self, name: str, stop: Callable[[], object], *, deadline_seconds: float = PART_SECONDS
    ) -> None:
        """Name a part that has started; what started last is stopped first.

        Args:
            name: for the log.
            stop: ends the part; it may take as long as the deadline.
            deadline_seconds: after which the next part's turn comes all the same.
        """
        self._parts.append(_Part(name=name, stop=stop, deadline_seconds=deadline_seconds))

    def on_hangup(self, reload: Callable[[], object]) -> None:
        """Call a function in the waiting thread for each SIGHUP."""
        self._reload = reload

    def catch_signals(self) -> None:
        """Let SIGTERM and SIGINT end the process, and SIGHUP reload; in the main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, lambda _number, _frame: self._wishes.put(_HANGUP))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._is_signalled:
            self._exit_now(128 + number)
        self._is_signalled = True
        self._wishes.put(signal.Signals(number).name)

    def ask_to_stop(self, why: str) -> None:
        """Begin the end, from any thread."""
        self._wishes.put(why)

    def run(self) -> int:
        """Wait for the end, then stop all parts.

        Returns:
            The process's exit code: 1 if a part failed to stop in time, else 0.
        """
        while (why := self._wishes.get()) == _HANGUP:
            self._reload_now()
        log.info("stopping", why=why)
        return 0 if self.shut_down() else 1

    def shut_down(self) -> bool:
        """Stop all parts now; return whether each did in time."""
        self.stopping.set()
        is_clean = True
        while self._parts:
            is_clean = self._stop(self._parts.pop()) and is_clean
        return is_clean

    def _reload_now(self) -> None:
        if self._reload is None:
            return
        try:
            self._reload()
        except Exception:
            # A bad new file must not end a process that runs well on the old one.
            log.exception("reload_failed")

    def _stop(self, part: _Part) -> bool:
        faults: list[Exception] = []

        def work() -> None:
            try:
                part.stop()
            except Exception as err:  # noqa: BLE001 - logged below, and the others still stop
                faults.append(err)

        began = self._clock()
        thread = threading.Thread(target=work, name=f"stop-{part.name}", daemon=True)
        thread.start()
        thread.join(part.deadline_seconds)
        if thread.is_alive():
            log.error("part_stops_late", part=part.name, deadline_seconds=part.deadline_seconds)
            return False
        if faults:
            log.error("part_failed_to_stop", part=part.name, exc_info=faults[0])
            return False
        log.debug("part_stopped", part=part.name, seconds=round(self._clock() - began, 3))
        return True
