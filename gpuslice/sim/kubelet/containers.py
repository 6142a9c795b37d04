# SPDX-License-Identifier: Apache-2.0
"""Containers without processes: how long one runs, and the environment that it sees. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuslice.contract import pods
from gpuslice.contract.pods import Json

_SLEEP: Final = re.compile(r"(?:^|[\s;&|/])sleep\s+(infinity|inf|[0-9]*\.?[0-9]+)([smhd]?)")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_FIELD: Final = re.compile(r"metadata\.(annotations|labels)\['([^']*)'\]")


def run_seconds(container: Json) -> float | None:
    """Return how long a container runs by itself, None where it runs until it is stopped.

    What counts is ``sleep N`` in its command and args, also inside a shell's text; several add
    up. A container without one, or with ``sleep infinity``, never ends.
    """
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    naps = _SLEEP.findall(" ".join(map(str, words)))
    if not naps or any(length.startswith("inf") for length, _ in naps):
        return None
    return float(sum(float(length) * _SECONDS[unit] for length, unit in naps))


def environment(pod: Json, container: Json, plugins: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return a container's environment.

    The plugins' variables come first, the first plugin's winning over the next; then the pod
    spec's own, which win over all. ``valueFrom`` is read for fields only.
    """
    merged: dict[str, str] = {}
    for variables in plugins:
        merged = {**variables, **merged}
    for each in container.get("env") or ():
        field = ((each.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
        if field is not None:
            merged[str(each.get("name"))] = _field(pod, str(field))
        elif "valueFrom" not in each:
            merged[str(each.get("name"))] = str(each.get("value") or "")
    return merged


def find(pod: Json, name: str) -> Json | None:
    """Return a pod's container by name."""
    return next((each for each in pods.containers(pod) if each.get("name") == name), None)


def _field(pod: Json, path: str) -> str:
    """Return a field of the pod as the downward API gives it, empty where it has none."""
    match = _FIELD.fullmatch(path)
    if match:
        return str((pods.meta_of(pod).get(match[1]) or {}).get(match[2]) or "")
    value: Any = pod
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)
