# SPDX-License-Identifier: Apache-2.0
"""The control daemons of a node's GPUs: one for each GPU that is shared by MPS, and no others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.inventory import Gpu
from deviceplugin.mps.control import Control
from deviceplugin.mps.keeper import ComputeModes, Keeper, Pace, State, restore
from deviceplugin.mps.memory import ModeMemory
from gpuslice.contract.names import GpuUuid

MEMORY_FILE: Final = "compute-modes.json"


class Supervisor:
    """Starts and ends them as GPUs and settings come and go."""

    def __init__(
        self,
        driver: ComputeModes,
        root: Path,
        program: str,
        *,
        on_change: Callable[[], None] = lambda: None,
        pace: Pace | None = None,
    ) -> None:
        """Keep pipes, logs and what must be restored under a root; `program` is NVIDIA's."""
        self._driver = driver
        self._root = root
        self._program = program
        self._on_change = on_change
        self._pace = pace or Pace()
        self._memory = ModeMemory(root / MEMORY_FILE)
        self._lock = threading.Lock()
        self._keepers: dict[GpuUuid, Keeper] = {}
        self._stopped = False

    def pipes_of(self, uuid: GpuUuid) -> Path:
        """Return the pipe folder of a GPU's daemon."""
        return self._root / uuid / "pipe"

    @property
    def shared_memory(self) -> Path:
        """Where daemons and clients share memory: mounted at /dev/shm in both."""
        return self._root / "shm"

    def keep(self, gpus: Iterable[Gpu]) -> None:
        """Have a daemon for each of these GPUs, and give all others their compute mode back."""
        wanted = {gpu.uuid: gpu for gpu in gpus}
        with self._lock:
            if self._stopped:
                return
            over = [self._keepers.pop(uuid) for uuid in self._keepers.keys() - wanted.keys()]
            fresh = [self._keeper(wanted[uuid]) for uuid in wanted.keys() - self._keepers.keys()]
            owed = self._memory.modes.keys() - wanted.keys()
        for keeper in over:
            keeper.stop()
        for uuid in owed:
            restore(self._driver, self._memory, uuid)
        for keeper in fresh:
            keeper.start()

    def _keeper(self, gpu: Gpu) -> Keeper:
        made = self._keepers[gpu.uuid] = Keeper(
            gpu.uuid,
            Control(self._program, gpu.uuid, self._root / gpu.uuid),
            self._driver,
            self._memory,
            on_change=self._on_change,
            exclusive=gpu.mig_parent is None,
            pace=self._pace,
        )
        return made

    @property
    def states(self) -> Mapping[GpuUuid, State]:
        """How each daemon is."""
        with self._lock:
            return {uuid: keeper.state for uuid, keeper in self._keepers.items()}

    @property
    def problem(self) -> str:
        """Which daemons don't run, and why; empty while all do."""
        return "; ".join(
            f"{uuid}: {state.problem}"
            for uuid, state in sorted(self.states.items())
            if not state.running
        )

    def stop(self) -> None:
        """End all daemons, and give all GPUs their compute mode back."""
        with self._lock:
            self._stopped = True
            keepers = list(self._keepers.values())
            self._keepers.clear()
        endings = [threading.Thread(target=keeper.stop) for keeper in keepers]
        for ending in endings:
            ending.start()
        for ending in endings:
            ending.join()
