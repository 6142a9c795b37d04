# SPDX-License-Identifier: Apache-2.0
"""The CDI spec of a node's GPUs: every container runtime can bring in what it names.

Source: the Container Device Interface, github.com/cncf-tags/container-device-interface, SPEC.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from deviceplugin.contents import InjectionError
from deviceplugin.devicefiles import DeviceFiles
from deviceplugin.inventory import Inventory

VERSION: Final = "0.5.0"
KIND: Final = "gpuslice.dev/gpu"
FILE_NAME: Final = "gpuslice.dev-gpu.json"


def name_of(uuid: str) -> str:
    """Return the name by which a container runtime is asked for a GPU."""
    return f"{KIND}={uuid}"


def spec_of(inventory: Inventory, files: DeviceFiles) -> dict[str, Any]:
    """Return the spec of all GPUs whose device files are known."""
    devices = []
    for gpu in inventory.gpus:
        with contextlib.suppress(InjectionError):
            nodes = _nodes(files.of_gpu(gpu))
            devices.append({"name": gpu.uuid, "containerEdits": {"deviceNodes": nodes}})
    mounts = [
        {
            "hostPath": mount.host,
            "containerPath": mount.container,
            "options": ["ro", "nosuid", "nodev", "bind"],
        }
        for mount in files.libraries()
    ]
    edits: dict[str, Any] = {"deviceNodes": _nodes(files.control()), "mounts": mounts}
    shared = {key: value for key, value in edits.items() if value}
    return {"cdiVersion": VERSION, "kind": KIND, "devices": devices, "containerEdits": shared}


def _nodes(paths: Sequence[str]) -> list[dict[str, str]]:
    return [{"path": path} for path in paths]


class CdiFile:
    """The spec in a folder that container runtimes read."""

    def __init__(self, folder: Path) -> None:
        """Write into a folder, which is made if need be."""
        self._folder = folder
        self._written: dict[str, Any] | None = None

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._folder / FILE_NAME

    def write(self, spec: dict[str, Any]) -> str:
        """Write a spec if it differs; a reader sees the old one or the new one, never a part.

        Returns:
            What stands in the way, empty if nothing does.
        """
        if spec == self._written and self.path.exists():
            return ""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # The dot and the ending keep runtimes from reading it before it has its name.
            handle, fresh = tempfile.mkstemp(dir=self._folder, prefix=".gpuslice-", suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(spec, file, indent=1)
                Path(fresh).chmod(0o644)
                Path(fresh).replace(self.path)
            except OSError:
                Path(fresh).unlink(missing_ok=True)
                raise
        except OSError as error:
            return f"the CDI spec {self.path} can't be written: {error.strerror}"
        self._written = spec
        return ""

    def remove(self) -> None:
        """Take it away, if it is there: a spec that nobody keeps would soon be wrong."""
        self._written = None
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
