# SPDX-License-Identifier: Apache-2.0
"""The device plugin's flags: one for each of its settings, of the same name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_origin

import click
import msgspec

from gpuslice.runtime import setting_faults
from gpuslice.runtime.settings import DevicePlugin, Settings

_CLUSTER_WIDE: Final = ("mode",)
"""Settings of the whole file that a single node's command may set too."""


def _spelled(section: type[msgspec.Struct], prefix: str = "") -> dict[str, str]:
    """Return the keys of a section's plain values, by their flags' parameter names."""
    return {
        field.name: f"{prefix}{field.encode_name}"
        for field in msgspec.structs.fields(section)
        if not (isinstance(field.type, type) and issubclass(field.type, msgspec.Struct))
        and field.name != "overrides"
        and get_origin(field.type) is not dict
    }


KEYS: Final[Mapping[str, str]] = _spelled(DevicePlugin, "devicePlugin.") | {
    name: key for name, key in _spelled(Settings).items() if name in _CLUSTER_WIDE
}
"""The dotted keys of the settings that have a flag, by the flags' parameter names."""


def plugin_options() -> list[click.Parameter]:
    """Return the options; what they say is checked with the file's settings."""
    return [
        click.Option([f"--{name.replace('_', '-')}"], help=f"Setting {key}.")
        for name, key in sorted(KEYS.items())
    ]


def flagged(flags: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what flags say, by dotted keys; a list is written with commas.

    Raises:
        SettingsError: for a value that is no YAML.
    """
    said: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None:
            continue
        key = KEYS[name]
        if name.endswith("xids"):
            value = f"[{value}]"  # noqa: PLW2901 - what the flag means
        elif not re.fullmatch(r"[-+.0-9]+|true|false", value):
            # A path or a word is a text, whatever YAML would make of it.
            said[key] = value
            continue
        said |= setting_faults.parse_overrides([f"{key}={value}"])
    return said
