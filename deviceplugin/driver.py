# SPDX-License-Identifier: Apache-2.0
"""Find and load the NVIDIA driver's library under a driver root, or say why that can't be."""

from __future__ import annotations

import ctypes
import enum
from pathlib import Path
from typing import Final

LIBRARY: Final = "libnvidia-ml.so.1"
_FOLDERS: Final = (
    "usr/lib/x86_64-linux-gnu",  # Debian, Ubuntu
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",  # RHEL, Amazon Linux, SUSE
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib64",  # also GKE's installation folder, where that is the root
    "usr/lib/wsl/lib",
)
_NESTED_ROOTS: Final = (
    "",
    "run/nvidia/driver",  # NVIDIA's driver container
    "home/kubernetes/bin/nvidia",  # Google's container-optimised OS
)


class Cause(enum.StrEnum):
    """Why the driver can't be asked."""

    NO_LIBRARY = "no library"
    NO_DRIVER = "no driver"
    MISMATCH = "version mismatch"
    """The library is of another version than the kernel module: only a new process helps."""
    CALL_FAILED = "call failed"


class DriverError(RuntimeError):
    """The NVIDIA driver as a whole can't be asked; the message says what was tried, and where."""

    def __init__(self, message: str, *, cause: Cause) -> None:
        super().__init__(message)
        self.cause = cause


def candidates(driver_root: Path) -> tuple[Path, ...]:
    """Return where the library may lie under a driver root, most usual first."""
    return tuple(
        driver_root / nested / folder / LIBRARY for nested in _NESTED_ROOTS for folder in _FOLDERS
    )


def find_library(driver_root: Path) -> Path:
    """Return the path by which the driver's library is loaded.

    Where the root is ``/`` and none of the usual places has it, that is its bare name, which the
    dynamic linker looks up.

    Raises:
        DriverError: where no usual place under another root has it.
    """
    places = candidates(driver_root)
    for place in places:
        if place.exists():
            return place
    if driver_root == Path("/"):
        return Path(LIBRARY)
    raise DriverError(
        f"no {LIBRARY} under the driver root {driver_root}: looked in "
        f"{', '.join(str(place.parent) for place in places)}",
        cause=Cause.NO_LIBRARY,
    )


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells one file of a name from the next, None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def preload(path: Path, *, loaded_before: ctypes.CDLL | None) -> ctypes.CDLL:
    """Load a library so that pynvml finds this one and no other.

    pynvml asks the dynamic linker for the bare name, and takes no path. The linker answers with a
    library that is loaded already, if that bears the name inside (its SONAME).

    Args:
        path: as `find_library` found it.
        loaded_before: what pynvml loaded earlier in this process, which it keeps for ever.

    Raises:
        DriverError: where it can't be loaded, or pynvml would use another.
    """
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        by_name = ctypes.CDLL(LIBRARY)
    except OSError as err:
        raise DriverError(f"{path} can't be loaded: {err}", cause=Cause.NO_LIBRARY) from err
    same = [each for each in (library, by_name, loaded_before) if each is not None]
    # The linker gives one handle for one library, however often it is loaded.
    if len({each._handle for each in same}) > 1:  # noqa: SLF001 - ctypes shows it nowhere else
        raise DriverError(
            f"{path} is not the {LIBRARY} that this process uses: another one was loaded first, "
            "or this one has another SONAME",
            cause=Cause.NO_LIBRARY,
        )
    return library
