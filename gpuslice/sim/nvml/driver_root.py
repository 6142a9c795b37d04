# SPDX-License-Identifier: Apache-2.0
"""Build the simulated libnvidia-ml.so.1, and lay out driver roots that hold it and its machine."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpuslice.sim.nvml.machine import WHOLE_GPU, Event, EventType, Fault, Machine, format_machine
from gpuslice.sim.nvml.reading import parse_machine

LIBRARY: Final = "libnvidia-ml.so.1"
LIBRARY_FOLDER: Final = "usr/lib/x86_64-linux-gnu"
"""Under the driver root; the device plugin looks there whatever the processor is."""
MACHINE_FILE: Final = "gpuslice-machine.conf"
"""Beside the library, which looks for it in its own folder."""
MACHINE_VARIABLE: Final = "GPUSLICE_SIM_MACHINE"
"""Names another machine file to the library, for a process that can't choose its driver root."""

_SOURCES: Final = Path(__file__).parent
_FLAGS: Final = (
    "-std=c11 -O2 -g -fPIC -shared -fvisibility=hidden -Wall -Wextra -Werror -pthread "
    f"-Wl,-z,defs -Wl,-soname,{LIBRARY}"
).split()


class BuildError(RuntimeError):
    """The library can't be built here; the message is one line and says what to install."""


def build_library(folder: Path) -> Path:
    """Compile the library into a folder, unless these very sources were compiled there before.

    Args:
        folder: where built libraries are kept, each in a folder named by its sources' hash.

    Returns:
        The library's path. Several processes may build at once: the last rename wins.

    Raises:
        BuildError: where there is no C compiler, or it fails.
    """
    files = sorted([*_SOURCES.glob("*.c"), *_SOURCES.glob("*.h")])
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    library = folder / digest.hexdigest()[:16] / LIBRARY
    if library.exists():
        return library
    compiler = shutil.which("cc")
    if compiler is None:
        raise BuildError("the simulated GPUs need a C compiler: apt-get install gcc libc6-dev")
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        fresh = Path(scratch) / LIBRARY
        sources = [str(file) for file in files if file.suffix == ".c"]
        command = [compiler, *_FLAGS, "-o", str(fresh), *sources, "-ldl"]
        done = subprocess.run(  # noqa: S603 - our own sources and flags
            command, capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), "no error")
            raise BuildError(
                f"{compiler} can't build the simulated GPUs ({first}): "
                "apt-get install gcc libc6-dev, then try again"
            )
        fresh.replace(library)
    return library


class DriverRoot:
    """A folder that looks like the root of an installed NVIDIA driver, with a machine behind it.

    Changes are atomic, and seen by every process that has the library loaded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = path / LIBRARY_FOLDER / LIBRARY
        self.machine_file = self.library.parent / MACHINE_FILE

    @classmethod
    def lay_out(cls, path: Path, machine: Machine, *, library: Path) -> DriverRoot:
        """Make a driver root with a copy of a built library, and its machine."""
        root = cls(path)
        root.library.parent.mkdir(parents=True, exist_ok=True)
        root.write(machine)
        fresh = root.library.with_name(f".{LIBRARY}.{os.getpid()}")
        shutil.copyfile(library, fresh)
        fresh.chmod(0o755)
        fresh.replace(root.library)
        return root

    def read(self) -> Machine:
        """Return the machine as it was last written; what NVML calls set is not in it."""
        return parse_machine(self.machine_file.read_text())

    def write(self, machine: Machine) -> None:
        """Put another machine behind the library."""
        self.machine_file.parent.mkdir(parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(dir=self.machine_file.parent)
        with os.fdopen(handle, "w") as file:
            file.write(format_machine(machine))
        Path(fresh).chmod(0o644)
        Path(fresh).replace(self.machine_file)

    def inject(self, change: Callable[[Machine], Machine]) -> None:
        """Change the machine while it runs; injections from several processes don't get lost."""
        with self._locked():
            self.write(change(self.read()))

    def lose(self, uuid: str, *, lost: bool = True) -> None:
        """Let a GPU fall off the bus, or come back."""
        self._change_gpu(uuid, lost=lost)

    def remove(self, uuid: str, *, missing: bool = True) -> None:
        """Take a GPU out of the machine, or put it back; NVML counts anew at its next init."""
        self._change_gpu(uuid, missing=missing)

    def fail(self, function: str, answer: int, *, gpu: str | None = None) -> None:
        """Let an NVML function answer an error, for one GPU or all."""
        fault = Fault(function=function, answer=answer)
        self.inject(lambda machine: machine.with_fault(fault, gpu=gpu))

    def heal(self) -> None:
        """Take all faults away."""
        self.inject(Machine.healed)

    def raise_xid(
        self,
        uuid: str,
        xid: int,
        *,
        gpu_instance: int = WHOLE_GPU,
        compute_instance: int = WHOLE_GPU,
    ) -> None:
        """Deliver one XID event, about a GPU or one of its MIG instances."""

        def change(machine: Machine) -> Machine:
            # By the clock, so that the number is a new one even after the machine was rewritten.
            last = max((event.serial for event in machine.events), default=0)
            event = Event(
                serial=max(last + 1, time.time_ns()),
                gpu=uuid,
                kind=EventType.XID,
                data=xid,
                gpu_instance=gpu_instance,
                compute_instance=compute_instance,
            )
            return dataclasses.replace(machine, events=(*machine.events, event))

        self.inject(change)

    def _change_gpu(self, uuid: str, *, lost: bool = False, missing: bool = False) -> None:
        self.inject(
            lambda machine: machine.with_gpu(
                dataclasses.replace(machine.gpu(uuid), lost=lost, missing=missing)
            )
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.machine_file.parent / f"{MACHINE_FILE}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
