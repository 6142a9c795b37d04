# SPDX-License-Identifier: Apache-2.0
"""Settings that change while the device plugin runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gpuslice.runtime import settings
from gpuslice.runtime.settings import Settings

# What tokens, sockets and the loaded driver rest on: a change needs another process.
_FIXED: Final = ("resource_name", "slice_by", "slices_per_gpu", "slice_memory_mib")
_FIXED_OF_PLUGIN: Final = (
    "driver_root",
    "host_driver_root",
    "dev_root",
    "proc_root",
    "kubelet_root",
    "plugin_dir",
    "metrics_port",
    "mig",
    "cdi_dir",
    "watch_use",
)
_FIXED_OF_MPS: Final = ("root", "control")

T = TypeVar("T", bound=msgspec.Struct)


def reloaded(old: Settings, new: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings to go by after a reload.

    Returns:
        The new settings, but the old ones where a change needs a restart; and the keys of those.
    """
    mps, of_mps = _kept(old.device_plugin.mps, new.device_plugin.mps, _FIXED_OF_MPS)
    plugin, of_plugin = _kept(old.device_plugin, new.device_plugin, _FIXED_OF_PLUGIN)
    chosen, keys = _kept(old, new, _FIXED)
    plugin = msgspec.structs.replace(plugin, mps=mps)
    return msgspec.structs.replace(chosen, device_plugin=plugin), (
        *keys,
        *(f"devicePlugin.{key}" for key in of_plugin),
        *(f"devicePlugin.mps.{key}" for key in of_mps),
    )


def _kept(old: T, new: T, fields: tuple[str, ...]) -> tuple[T, list[str]]:
    spelled = dict(zip(old.__struct_fields__, old.__struct_encode_fields__, strict=True))
    changed = [field for field in fields if getattr(old, field) != getattr(new, field)]
    kept = {field: getattr(old, field) for field in changed}
    return msgspec.structs.replace(new, **kept), [spelled[field] for field in changed]


@dataclass(frozen=True, slots=True, kw_only=False)
class Source:
    """Where the settings come from."""

    path: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key; they win over the file, at each load."""

    def load(self) -> Settings:
        """Return the settings as they are now; SettingsError."""
        return settings.load(self.path, dict(self.overrides))


class FileChanges:
    """Calls back when a file's content has changed. It looks now and then.

    kubelet brings a changed ConfigMap after up to a minute, and exchanges a whole folder then: to
    be told of that by the system would cost more than to look.
    """

    def __init__(
        self, path: Path | None, on_change: Callable[[], object], *, every_seconds: float = 10.0
    ) -> None:
        """Watch a file once started; None never changes."""
        self._path = path
        self._on_change = on_change
        self._every = every_seconds
        self._stop = threading.Event()
        self._content = self._read()
        self._thread = threading.Thread(target=self._run, name="settings", daemon=True)

    def start(self) -> None:
        """Begin."""
        if self._path is not None:
            self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _read(self) -> bytes | None:
        try:
            return None if self._path is None else self._path.read_bytes()
        except OSError:
            return None

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            content = self._read()
            if content is not None and content != self._content:
                self._content = content
                self._on_change()
