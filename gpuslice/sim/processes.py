# SPDX-License-Identifier: Apache-2.0
"""The product's processes beside an embedded cluster: started, waited for, ended by their id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

STOP_SECONDS: Final = 5.0
"""How long a process may take to end by itself."""
LOG_LINES_SHOWN: Final = 12


class ProcessError(RuntimeError):
    """A process didn't start, or ended; the message has the end of its log."""


class Child:
    """One process and its log."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        """Keep what `Processes.start` started."""
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait_until(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Wait for a sign of its life.

        Raises:
            ProcessError: where it ends before, or the time is over.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            if self.exit_code is not None:
                raise ProcessError(f"{self.name} ended with {self.exit_code}{self.last_words()}")
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} is not ready in {seconds} s{self.last_words()}")
            time.sleep(0.02)

    def last_words(self) -> str:
        """Return the end of its log, and where the whole is."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n  ".join([f"; the end of {self.log}:", *lines[-LOG_LINES_SHOWN:]])

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """End it: kindly, then not."""
        self._process.terminate()
        self.reap()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def reap(self, seconds: float = STOP_SECONDS) -> None:
        """Wait for its end after a kind signal, and kill it where that takes longer."""
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self.kill()


class Processes:
    """All children of one embedded cluster."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        """Keep logs in a folder that exists; `environment` is added to each child's."""
        self._logs = logs
        self._environment = environment
        self._children: list[Child] = []
        # The parent-death signal comes when the THREAD that forked ends, so one thread forks all,
        # and lives as long as they do.
        self._forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forker")

    def start(self, name: str, module: str, arguments: Sequence[str]) -> Child:
        """Start `python -m module arguments`, its output in a log of that name."""
        log = self._logs / f"{name}.log"
        python = [sys.executable, "-P", "-m"]
        leash = [*python, "gpuslice.sim.leash", str(os.getpid())]
        command = [*leash, *python, module, *arguments]
        child = self._forker.submit(self._start, name, command, log).result()
        self._children.append(child)
        return child

    def _start(self, name: str, command: Sequence[str], log: Path) -> Child:
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603  our own modules, no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
                # Ctrl-C on the terminal is for the demo, which then ends its children in order.
                start_new_session=True,
            )
        return Child(name, process, log)

    def stop(self, child: Child) -> None:
        """End one of them."""
        child.stop()
        self._children.remove(child)

    def kill(self, child: Child) -> None:
        """End one of them at once, as the kernel's memory killer would."""
        child.kill()
        self._children.remove(child)

    def ended(self) -> tuple[Child, ...]:
        """Return those that ended without being asked to."""
        return tuple(child for child in self._children if child.exit_code is not None)

    def close(self) -> None:
        """End all of them, at the same time."""
        for child in self._children:
            if child.exit_code is None:
                child.signal(signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        for child in self._children:
            child.reap(until - time.monotonic())
        self._children.clear()
        self._forker.shutdown()
