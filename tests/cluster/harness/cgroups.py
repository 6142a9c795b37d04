# SPDX-License-Identifier: Apache-2.0
"""A cgroup of its own for every node, in each hierarchy of the machine, version 1 or 2."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .errors import TimedOutError

ROOT = Path("/sys/fs/cgroup")


def hierarchies(root: Path = ROOT) -> tuple[Path, ...]:
    """The machine's cgroup hierarchies: one with version 2, one per controller with version 1."""
    if (root / "cgroup.controllers").exists():
        return (root,)
    return tuple(
        path
        for path in sorted(root.iterdir())
        if path.is_dir() and not path.is_symlink() and (path / "cgroup.procs").exists()
    )


def create(group: str) -> None:
    """Make a cgroup, named as kubelet's `cgroupRoot` wants it: from the root of each hierarchy."""
    for hierarchy in hierarchies():
        path = hierarchy
        for part in Path(group).parts[1:]:
            _delegate(path)
            path = path / part
            path.mkdir(exist_ok=True)
            _inherit_cpuset(path)
        _delegate(path)


def _delegate(path: Path) -> None:
    """Version 2: a controller works in a child only if its parent hands it down."""
    available = path / "cgroup.controllers"
    if available.exists():
        for controller in available.read_text().split():
            with suppress(OSError):  # some controllers refuse beside real-time processes
                (path / "cgroup.subtree_control").write_text(f"+{controller}")


def _inherit_cpuset(path: Path) -> None:
    """Version 1: a new cpuset has no CPU and no memory node, and so takes no process."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        if (path / file).exists() and not (path / file).read_text().strip():
            (path / file).write_text((path.parent / file).read_text())


def remove(group: str, *, timeout_seconds: float = 10) -> None:
    """Remove a cgroup and all below it; its processes have been killed, so it empties itself.

    Raises:
        TimedOutError: one is still in use.
    """
    deadline = time.monotonic() + timeout_seconds
    for hierarchy in hierarchies():
        while left := [path for path in _below(hierarchy / group.lstrip("/")) if not _rmdir(path)]:
            if time.monotonic() > deadline:
                raise TimedOutError(f"cgroup {left[0]} is still in use")
            time.sleep(0.02)


def _below(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for child in path.iterdir():
            if child.is_dir():
                yield from _below(child)
        yield path


def _rmdir(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
