# SPDX-License-Identifier: Apache-2.0
"""The compute modes that GPUs had before MPS, in a file: sudden death must not lose them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from gpuslice.contract.names import GpuUuid


class ModeMemory:
    """What must be restored, by GPU."""

    def __init__(self, path: Path) -> None:
        """Begin with what an earlier life left in the file; one that can't be read has nothing."""
        self._path = path
        self._lock = threading.Lock()
        self._modes = _read(path)

    @property
    def modes(self) -> Mapping[GpuUuid, int]:
        """The modes to restore."""
        with self._lock:
            return dict(self._modes)

    def remember(self, uuid: GpuUuid, mode: int) -> None:
        """Keep a GPU's mode, unless one is kept already: that is the older one. OSError."""
        with self._lock:
            if uuid not in self._modes:
                self._write({**self._modes, uuid: mode})

    def forget(self, uuid: GpuUuid) -> None:
        """A GPU has its mode again. OSError."""
        with self._lock:
            if uuid in self._modes:
                self._write({key: mode for key, mode in self._modes.items() if key != uuid})

    def _write(self, modes: dict[GpuUuid, int]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(modes, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        self._modes = modes


def _read(path: Path) -> dict[GpuUuid, int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {GpuUuid(str(uuid)): int(mode) for uuid, mode in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
