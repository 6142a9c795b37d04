# SPDX-License-Identifier: Apache-2.0
"""Hearing of changes in kubelet's plugin folder: a new kubelet.sock, a deleted socket of ours.

Straight from the system: a thread that sleeps until something happens. What looks now and then
takes either CPU all the time, or too long when kubelet is back and counts on us.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

RETRY_SECONDS: Final = 5.0
_EVENTS_BYTES: Final = 64 * 1024

# Of <sys/inotify.h>: entries that come and go, and the folder's own end.
_CREATE, _DELETE, _MOVED_FROM, _MOVED_TO = 0x100, 0x200, 0x40, 0x80
_DELETE_SELF, _MOVE_SELF, _ONLYDIR = 0x400, 0x800, 0x01000000
_CHANGES: Final = _CREATE | _DELETE | _MOVED_FROM | _MOVED_TO | _DELETE_SELF | _MOVE_SELF | _ONLYDIR


class FolderWatch:
    """Calls back at each change of a folder's entries, as long as the system lets it watch.

    Who is called must look for itself now and then: a node may be out of inotify instances.
    """

    def __init__(self, folder: Path, on_change: Callable[[], None]) -> None:
        """Be ready to watch a folder, which need not exist yet."""
        self._folder = folder
        self._on_change = on_change
        self._stop = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="folder-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._watch()
            except OSError:
                # No folder, or no inotify instance left: those called look by themselves.
                self._stop.wait(RETRY_SECONDS)

    def _watch(self) -> None:
        """Watch until the folder is another one, or not there."""
        handle = _inotify(self._folder)
        try:
            watched = _inode(self._folder)
            # Before now nobody told of changes.
            self._on_change()
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.register(self._wake, select.POLLIN)
            while not self._stop.is_set() and _inode(self._folder) == watched:
                if any(ready == handle for ready, _ in poll.poll()):
                    os.read(handle, _EVENTS_BYTES)
                    self._on_change()
        finally:
            os.close(handle)


def _inotify(folder: Path) -> int:
    """Return a descriptor on which a folder's changes can be read, or raise OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = int(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if handle < 0:
        raise OSError(ctypes.get_errno(), "no inotify instance")
    if libc.inotify_add_watch(handle, os.fsencode(folder), _CHANGES) < 0:
        error = ctypes.get_errno()
        os.close(handle)
        raise OSError(error, os.strerror(error), str(folder))
    return handle


def _inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except OSError:
        return None
