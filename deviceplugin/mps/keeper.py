# SPDX-License-Identifier: Apache-2.0
"""Keeping one GPU's control daemon alive: a thread that waits for its death."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from deviceplugin.backoff import Backoff
from deviceplugin.driver import DriverError
from deviceplugin.mps.control import Control, ControlError
from deviceplugin.mps.memory import ModeMemory
from gpuslice.contract.names import GpuUuid
from gpuslice.runtime import logs

log = logs.get(__name__)

EXCLUSIVE_PROCESS: Final = 3
"""Only the MPS server may use the GPU, so nobody gets round the limits.

Source: nvml.h, nvmlComputeMode_t.
"""


class ComputeModes(Protocol):
    """The driver, as far as MPS needs it."""

    def compute_mode(self, uuid: GpuUuid) -> int:
        """Return a GPU's mode, or raise DriverError."""

    def set_compute_mode(self, uuid: GpuUuid, mode: int) -> None:
        """Set it, or raise DriverError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long is waited for what, in seconds."""

    answer: float = 10.0
    """For a started daemon to answer."""
    look: float = 0.1
    """Between two questions whether it does."""
    first_retry: float = 1.0
    last_retry: float = 60.0
    steady: float = 60.0
    """A daemon that lived so long is started again at once when it dies."""
    quit: float = 3.0
    """For it to end by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What people are told of a daemon."""

    running: bool = False
    problem: str = "its control daemon is being started"
    restarts: int = 0


class Keeper:
    """One GPU's."""

    def __init__(
        self,
        uuid: GpuUuid,
        control: Control,
        driver: ComputeModes,
        memory: ModeMemory,
        *,
        on_change: Callable[[], None],
        exclusive: bool = True,
        pace: Pace,
    ) -> None:
        """Be ready to start.

        Args:
            uuid: the GPU.
            control: its daemon.
            driver: sets compute modes.
            memory: keeps what they were.
            on_change: told of each change of `state`.
            exclusive: whether the GPU has a compute mode of its own; a MIG instance has none.
            pace: how long is waited.
        """
        self._uuid = uuid
        self._control = control
        self._driver = driver
        self._memory = memory
        self._on_change = on_change
        self._exclusive = exclusive
        self._pace = pace
        self._state = State()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"mps-{uuid}", daemon=True)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> State:
        """How its daemon is."""
        return self._state

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the daemon, and give the GPU its mode back."""
        self._stop.set()
        child = self._child
        if child is not None:
            self._end(child)
        self._thread.join()
        restore(self._driver, self._memory, self._uuid)

    def _run(self) -> None:
        backoff = Backoff(
            time.monotonic,
            first_seconds=self._pace.first_retry,
            most_seconds=self._pace.last_retry,
        )
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                problem = self._serve()
            except (ControlError, DriverError, OSError) as error:
                problem = str(error)
            if self._stop.is_set():
                return
            log.warning("mps_daemon_down", gpu_uuid=self._uuid, problem=problem)
            self._tell(State(problem=problem, restarts=self._state.restarts + 1))
            if time.monotonic() - begun >= self._pace.steady:
                backoff.reset()
                continue
            self._stop.wait(backoff.pause_seconds)
            backoff.failed()

    def _serve(self) -> str:
        """Start the daemon, wait for its death, and return how it died."""
        if self._exclusive:
            self._memory.remember(self._uuid, self._driver.compute_mode(self._uuid))
            self._driver.set_compute_mode(self._uuid, EXCLUSIVE_PROCESS)
        self._end_former()
        self._child = child = self._control.start()
        try:
            self._wait_for_answer(child)
            if self._stop.is_set():
                return "it is not needed any more"
            log.info("mps_daemon_up", gpu_uuid=self._uuid, pid=child.pid)
            self._tell(State(running=True, problem="", restarts=self._state.restarts))
            return f"its control daemon ended with status {child.wait()}"
        finally:
            self._end(child)
            self._child = None

    def _end_former(self) -> None:
        """End the daemon of an earlier life: two can't have one pipe folder."""
        try:
            self._control.ask("quit", self._pace.quit)
        except ControlError:
            # The usual case: there is none.
            return
        log.info("mps_daemon_of_earlier_life_ended", gpu_uuid=self._uuid)

    def _wait_for_answer(self, child: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + self._pace.answer
        while not self._stop.is_set() and child.poll() is None:
            try:
                self._control.ask("get_default_active_thread_percentage")
            except ControlError as error:
                if time.monotonic() > end:
                    raise ControlError(f"its control daemon doesn't answer: {error}") from error
                self._stop.wait(self._pace.look)
            else:
                return

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        if child.poll() is not None:
            return
        try:
            self._control.ask("quit", self._pace.quit)
            child.wait(self._pace.quit)
        except (ControlError, subprocess.TimeoutExpired):
            child.kill()
            child.wait()

    def _tell(self, state: State) -> None:
        self._state = state
        self._on_change()


def restore(driver: ComputeModes, memory: ModeMemory, uuid: GpuUuid) -> bool:
    """Give a GPU the compute mode back that it had before MPS; return whether that is done."""
    mode = memory.modes.get(uuid)
    if mode is None:
        return True
    try:
        driver.set_compute_mode(uuid, mode)
        memory.forget(uuid)
    except (DriverError, OSError) as error:
        # It stays in the file: the next look, or the next start, tries again.
        log.warning("compute_mode_not_restored", gpu_uuid=uuid, error=str(error))
        return False
    return True
