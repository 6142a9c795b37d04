# SPDX-License-Identifier: Apache-2.0
"""One long-running program of the cluster: started, stopped, killed, started again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from .errors import HarnessError, TimedOutError
from .namespaces import Namespaces, environment, is_running, only_child, tail


class Program:
    """A program inside the cluster's or a node's namespaces, with a log file of its own."""

    def __init__(
        self,
        name: str,
        argv: tuple[str | Path, ...],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._argv = tuple(map(str, argv))
        self._log = log
        self._env = env or {}
        self._nsenter: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def pid(self) -> int:
        """Its process id as seen from the machine; 0 when it was never started."""
        return self._pid

    def is_running(self) -> bool:
        return self._pid != 0 and is_running(self._pid)

    def start(self, namespaces: Namespaces) -> None:
        if self.is_running():
            raise HarnessError(f"{self.name} is running already (process {self._pid})")
        with self._log.open("ab") as log:
            self._nsenter = subprocess.Popen(
                (*namespaces.enter(), *self._argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**environment(), **self._env},
            )
        try:
            self._pid = only_child(self._nsenter.pid)
        except HarnessError as err:
            raise HarnessError(f"{self.name} did not start:\n{tail(self._log)}") from err

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, SIGSTOP and SIGCONT included; nothing happens if it has ended."""
        if self.is_running():
            os.kill(self._pid, number)
        if number == signal.SIGCONT and self._nsenter is not None:
            self._nsenter.send_signal(number)  # nsenter stops itself when its program is stopped

    def stop(self, timeout_seconds: float = 30) -> None:
        """SIGTERM, and wait for its end; what it has started runs on."""
        self.send(signal.SIGTERM)
        self._wait(timeout_seconds)

    def kill(self) -> None:
        """SIGKILL, and wait for its end; what it has started runs on."""
        self.send(signal.SIGKILL)
        self._wait(10)

    def _wait(self, timeout_seconds: float) -> None:
        if self._nsenter is None:
            return
        try:
            self._nsenter.wait(timeout_seconds)
        except subprocess.TimeoutExpired as err:
            raise TimedOutError(f"{self.name} did not end in {timeout_seconds} s") from err

    def wait_until(self, ready: Callable[[], bool], *, timeout_seconds: float) -> None:
        """Wait for what shows that it works; if it ends before, say so with its last lines."""
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            if not self.is_running():
                raise HarnessError(f"{self.name} ended:\n{tail(self._log)}")
            if time.monotonic() > deadline:
                raise TimedOutError(
                    f"{self.name} not ready after {timeout_seconds} s:\n{tail(self._log)}"
                )
            time.sleep(0.05)
