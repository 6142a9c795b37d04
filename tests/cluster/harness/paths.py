# SPDX-License-Identifier: Apache-2.0
"""Where the harness keeps things: what it builds in a cache, each cluster in its own folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
GO_MODULES = REPOSITORY / "tests" / "cluster" / "go"

_RUNS = Path("/var/tmp")  # a disk, not a tmpfs: overlay mounts want one; and a reboot may clear it
_PREFIX = "gpuslice-cluster-"


def run_folder(name: str) -> Path:
    """A cluster's folder, gone with it."""
    return _RUNS / f"{_PREFIX}{name}"


def run_folders() -> list[Path]:
    return sorted(_RUNS.glob(f"{_PREFIX}*"))


def cache_dir() -> Path:
    """What is built once: binaries and images, each under a key of what it was built from."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpuslice" / "cluster"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file: it ends with the process, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        flock(file, LOCK_EX)
        yield


def say(line: str) -> None:
    """Tell the person at the terminal, or the CI log, at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
