# SPDX-License-Identifier: Apache-2.0
"""Quantities of resources as whole thousandths, and what a pod asks for in sum."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

Amounts = Mapping[str, int]
"""Thousandths by resource name."""

ONE: Final = 1000
PODS: Final = "pods"
CPU: Final = "cpu"
MEMORY: Final = "memory"
# What scoring takes for a container that asks for none, so that such pods spread too.
# Source: Kubernetes pkg/scheduler/util/pod_resources.go.
_UNASKED: Final = {CPU: 100, MEMORY: 200 * 2**20 * ONE}
_QUANTITY: Final = re.compile(r"([+-]?[0-9]*\.?[0-9]+\.?)([eE][+-]?[0-9]+|[KMGTPE]i|[numkMGTPE]?)")
_UNITS: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}


def amount(text: object) -> int:
    """Return a quantity in thousandths, rounded up.

    Raises:
        ValueError: where it is none.
    """
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is no quantity")
    number, unit = found.groups()
    scale = _UNITS.get(unit) or Fraction(10) ** int(unit[1:])
    return -(-Fraction(number) * scale * ONE // 1)


def amounts(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    """Return a map of quantities in thousandths."""
    return {name: amount(text) for name, text in (quantities or {}).items()}


def requests_of(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return what a pod takes of a node while it is on it, one of `pods` included.

    The greater of what its containers and sidecars take together, and what each init container
    takes beside the sidecars started before it; and the overhead.

    Source: Kubernetes, Sidecar Containers, resource sharing within containers.
    """
    return _effective(pod, _asked) | {PODS: ONE}


def scored_requests_of(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return CPU and memory as scoring counts them, with something for those who ask for none."""
    found = _effective(pod, lambda container: _UNASKED | _asked(container))
    return {name: found.get(name, 0) for name in (CPU, MEMORY)}


def _asked(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    return amounts((resources.get("limits") or {}) | (resources.get("requests") or {}))


def _effective(pod: Mapping[str, Any], asked: Any) -> dict[str, int]:
    spec = pod.get("spec") or {}
    sidecars: dict[str, int] = {}
    most: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, asked(container))
            most = _greater(most, sidecars)
        else:
            most = _greater(most, _sum(sidecars, asked(container)))
    together = sidecars
    for container in spec.get("containers") or ():
        together = _sum(together, asked(container))
    return _sum(_greater(most, together), amounts(spec.get("overhead")))


def _sum(left: Amounts, right: Amounts) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}


def _greater(left: Amounts, right: Amounts) -> dict[str, int]:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {**left, **right}}
