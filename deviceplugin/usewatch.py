# SPDX-License-Identifier: Apache-2.0
"""Looking now and then at what containers use of their GPUs. One thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from deviceplugin import usage
from deviceplugin.driver import DriverError
from deviceplugin.inventory import GpuProcess
from deviceplugin.usage import Use
from gpuslice.contract.ledger import Claim
from gpuslice.contract.names import PodUid
from gpuslice.runtime import logs

log = logs.get(__name__)


class Processes(Protocol):
    """The driver, as far as it tells of processes."""

    def processes(self) -> tuple[GpuProcess, ...]:
        """Return the processes on all GPUs, by the node's process ids, or raise DriverError."""


class UseWatch:
    """Knows what was used at the last look."""

    def __init__(
        self,
        driver: Processes,
        proc_root: Path,
        *,
        claims: Callable[[], Iterable[Claim]],
        pods: Callable[[], Mapping[PodUid, Mapping[str, Any]]],
        on_over: Callable[[Use], None],
        every_seconds: float,
    ) -> None:
        """Be ready to start.

        Args:
            driver: tells of processes.
            proc_root: the node's /proc.
            claims: what is claimed now.
            pods: those bound here, with their containers' ids.
            on_over: told of each container that begins to use more than it claims.
            every_seconds: between two looks.
        """
        self._driver = driver
        self._proc = proc_root
        self._claims = claims
        self._pods = pods
        self._on_over = on_over
        self._every = every_seconds
        self._stop = threading.Event()
        self._uses: tuple[Use, ...] = ()
        self._over: frozenset[tuple[PodUid, str, str]] = frozenset()
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="use-watch", daemon=True)

    @property
    def uses(self) -> tuple[Use, ...]:
        """What was used at the last look."""
        return self._uses

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self) -> None:
        """Look once, in the caller's thread."""
        try:
            processes = self._driver.processes()
        except DriverError as error:
            if str(error) != self._problem:
                log.warning("use_not_seen", problem=str(error))
            self._problem = str(error)
            return
        self._problem = ""
        containers = {
            pid: found
            for pid in {process.pid for process in processes}
            if (found := self._container_of(pid)) is not None
        }
        uses = usage.uses(self._claims(), self._pods(), processes, containers)
        before, over = self._over, {_key(use): use for use in uses if use.is_over}
        self._uses, self._over = uses, frozenset(over)
        for key, use in over.items():
            if key not in before:
                self._on_over(use)

    def _container_of(self, pid: int) -> str | None:
        try:
            text = (self._proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
        except OSError:
            # It has ended, or its id is of a namespace that isn't the node's.
            return None
        return usage.container_in(text)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self.look()
            except Exception:
                # Only a watch: GPUs are served without it.
                log.exception("use_watch_confused")


def _key(use: Use) -> tuple[PodUid, str, str]:
    return use.pod.uid, use.container, use.gpu
