# SPDX-License-Identifier: Apache-2.0
"""Changes of a folder are heard of at once, and that of the folder itself too."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deviceplugin import folderwatch
from deviceplugin.folderwatch import FolderWatch

SECONDS = 25
"""A machine may be out of inotify instances for a while: then the watch tries again."""


@contextmanager
def watched(folder: Path) -> Iterator[queue.Queue[None]]:
    heard: queue.Queue[None] = queue.Queue()
    watch = FolderWatch(folder, lambda: heard.put(None))
    watch.start()
    try:
        yield heard
    finally:
        watch.stop()


def settle(heard: queue.Queue[None]) -> None:
    """Take what was told so far."""
    try:
        while True:
            heard.get(timeout=0.05)
    except queue.Empty:
        return


def test_entries_that_come_and_go_are_heard_of(tmp_path: Path) -> None:
    with watched(tmp_path) as heard:
        heard.get(timeout=SECONDS)  # it watches
        (tmp_path / "kubelet.sock").touch()
        heard.get(timeout=SECONDS)
        settle(heard)
        (tmp_path / "kubelet.sock").unlink()
        heard.get(timeout=SECONDS)


def test_what_is_written_into_a_file_is_nobody_s_business(tmp_path: Path) -> None:
    """Kubelet rewrites its checkpoint by renaming; logs beside it may be written all the time."""
    file = tmp_path / "log"
    file.touch()
    with watched(tmp_path) as heard:
        heard.get(timeout=SECONDS)
        file.write_text("more")
        with pytest.raises(queue.Empty):
            heard.get(timeout=0.2)


def test_a_folder_that_was_replaced_is_watched_in_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    with watched(folder) as heard:
        heard.get(timeout=SECONDS)
        folder.rename(tmp_path / "old")
        folder.mkdir()
        heard.get(timeout=SECONDS)
        settle(heard)
        (folder / "kubelet.sock").touch()
        # Where the folder was missing for a moment, it is looked for again after a while.
        heard.get(timeout=folderwatch.RETRY_SECONDS + SECONDS)


def test_it_ends_at_once_with_and_without_a_folder(tmp_path: Path) -> None:
    with watched(tmp_path / "nowhere") as heard:
        assert heard.empty()
    with watched(tmp_path) as heard:
        heard.get(timeout=SECONDS)
    FolderWatch(tmp_path, lambda: None).stop()
