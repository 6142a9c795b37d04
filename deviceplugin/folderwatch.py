# SPDX-License-Identifier: Apache-2.0
"""Hearing of changes in kubelet's plugin folder: a new kubelet.sock, a deleted socket of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import watchfiles

STEP_MS: Final = 100
"""How often the watcher looks at its queue: below 0.1 % of a core when idle."""
RETRY_SECONDS: Final = 5.0
BEAT_MS: Final = 5_000


class FolderWatch:
    """Calls back at each change of a folder's entries, as long as the system lets it watch.

    Who is called must look for itself now and then: a node may be out of inotify instances, and
    a folder that is replaced takes its watch along.
    """

    def __init__(self, folder: Path, on_change: Callable[[], None]) -> None:
        """Be ready to watch a folder, which need not exist yet."""
        self._folder = folder
        self._on_change = on_change
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="folder-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._watch()
            except (OSError, RuntimeError):
                # No folder, or no inotify instance left: those called look by themselves.
                self._stop.wait(RETRY_SECONDS)

    def _watch(self) -> None:
        watched = self._inode()
        for changes in watchfiles.watch(
            self._folder,
            recursive=False,
            debounce=STEP_MS,
            step=STEP_MS,
            stop_event=self._stop,
            rust_timeout=BEAT_MS,
            yield_on_timeout=True,
        ):
            if changes:
                self._on_change()
            if self._inode() != watched:
                return

    def _inode(self) -> int | None:
        try:
            return self._folder.stat().st_ino
        except OSError:
            return None
