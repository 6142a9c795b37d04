# SPDX-License-Identifier: Apache-2.0
"""Pods: their defaults, what may stand in them, and what may change.

Source: Kubernetes pkg/apis/core/v1/defaults.go and pkg/apis/core/validation (v1.36).
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gpuslice.sim.apiserver.objects import is_qualified

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Json = dict[str, Any]
Faults = list[tuple[str, str]]

DEFAULT_GRACE_SECONDS = 30
_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
_QUANTITY = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")
_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    "Ki": Fraction(1024),
} | {
    name: Fraction(base**power)
    for power, letter in enumerate("MGTPE", start=2)
    for name, base in ((letter, 1000), (f"{letter}i", 1024))
}
_CONTAINER_LISTS = ("initContainers", "containers")
_CONTAINER_MUTABLE = frozenset({"image"})
_SPEC_MUTABLE = frozenset(
    {"activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"}
)


def amount(value: object) -> Fraction | None:
    """Read a quantity; None when it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        return None
    sign, number, suffix = found.groups()
    scale = Fraction(1)
    if suffix:
        scale = _SUFFIXES[suffix] if suffix in _SUFFIXES else Fraction(10) ** int(suffix[1:])
    return Fraction(number) * scale * (-1 if sign == "-" else 1)


def _with_defaults(container: Json) -> Json:
    resources = dict(container.get("resources") or {})
    limits = resources.get("limits") or {}
    if limits:
        requests = dict(resources.get("requests") or {})
        for resource, value in limits.items():
            requests.setdefault(resource, value)
        resources["requests"] = requests
    image = container.get("image") or ""
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    pull = "Always" if tag in {"", "latest"} and "@" not in image else "IfNotPresent"
    return {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": pull,
        **container,
        "resources": resources,
    }


def default(pod: Mapping[str, Any]) -> Json:
    """Fill in what a real server fills in; run again on the result, it changes nothing."""
    spec = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": DEFAULT_GRACE_SECONDS,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "serviceAccountName": "default",
        "securityContext": {},
        **(pod.get("spec") or {}),
    }
    for field in _CONTAINER_LISTS:
        if field in spec:
            spec[field] = [
                _with_defaults(one) if isinstance(one, dict) else one for one in spec[field] or ()
            ]
    return {**pod, "spec": spec}


def reset(pod: Json) -> Json:
    """Give a new pod the status of one: whatever its creator wrote there is dropped."""
    return {**pod, "status": {"phase": "Pending"}}


def containers(pod: Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
    """Walk over all containers with their field paths."""
    for field in _CONTAINER_LISTS:
        for number, container in enumerate(pod["spec"].get(field) or ()):
            yield f"spec.{field}[{number}]", container


def check(pod: Mapping[str, Any]) -> Faults:
    """List what is wrong in a new pod: names, images, resources."""
    faults: Faults = []
    if not pod["spec"].get("containers"):
        faults.append(("spec.containers", "Required value"))
    names = set()
    for path, container in containers(pod):
        name = container.get("name")
        if not name:
            faults.append((f"{path}.name", "Required value"))
        elif name in names:
            faults.append((f"{path}.name", f'Duplicate value: "{name}"'))
        names.add(name)
        if not container.get("image"):
            faults.append((f"{path}.image", "Required value"))
        faults += _check_resources(f"{path}.resources", container.get("resources") or {})
    return faults


def _check_resources(path: str, resources: Json) -> Faults:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    faults: Faults = []
    for field, values in (("limits", limits), ("requests", requests)):
        for name, value in values.items():
            faults += _check_quantity(f"{path}.{field}[{name}]", name, value)
    for name, value in requests.items():
        limit, asked = amount(limits.get(name)), amount(value)
        if limit is not None and asked is not None and is_extended(name) and asked != limit:
            faults.append(
                (f"{path}.requests", f'Invalid value: "{value}": must be equal to {name} limit')
            )
        elif limit is not None and asked is not None and asked > limit:
            faults.append(
                (
                    f"{path}.requests",
                    f'Invalid value: "{value}": must be less than or equal to {name} limit',
                )
            )
        elif limit is None and is_extended(name):
            faults.append(
                (f"{path}.limits", f"Required value: {name} can't be overcommitted: set its limit")
            )
    return faults


def _check_quantity(path: str, name: str, value: object) -> Faults:
    number = amount(value)
    if number is None:
        return [(path, f"Invalid value: {value!r}: not a quantity")]
    if number < 0:
        return [(path, f'Invalid value: "{value}": must be greater than or equal to 0')]
    if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
        return [(path, f'Invalid value: "{name}": must be a standard resource for containers')]
    if not is_qualified(name):
        return [(path, f'Invalid value: "{name}": not a qualified name')]
    if is_extended(name) and number.denominator != 1:
        return [(path, f'Invalid value: "{value}": must be an integer')]
    return []


def is_extended(name: str) -> bool:
    prefix, slash, _ = name.rpartition("/")
    return bool(slash) and prefix != "kubernetes.io" and not prefix.endswith(".kubernetes.io")


def check_change(pod: Mapping[str, Any], before: Mapping[str, Any]) -> Faults:
    """List what an update may not change in a pod."""
    if _immutable(pod["spec"]) == _immutable(before["spec"]):
        return []
    gated = bool(before["spec"].get("schedulingGates"))
    loose = frozenset({"nodeSelector", "affinity"}) if gated else frozenset[str]()
    if _immutable(pod["spec"], loose) == _immutable(before["spec"], loose):
        return []
    rule = (
        "Forbidden: of a pod's spec only images, activeDeadlineSeconds, tolerations "
        "(additions), terminationGracePeriodSeconds and fewer schedulingGates may change"
    )
    return [("spec", rule)]


def _immutable(spec: Json, loose: frozenset[str] = frozenset()) -> Json:
    kept = {key: value for key, value in spec.items() if key not in _SPEC_MUTABLE | loose}
    for field in _CONTAINER_LISTS:
        if field in kept:
            kept[field] = [
                {key: value for key, value in one.items() if key not in _CONTAINER_MUTABLE}
                for one in kept[field]
            ]
    return kept


def grace_seconds(pod: Mapping[str, Any], asked: int | None) -> int:
    """Return how long a pod may go on after its deletion: 0 when nothing runs."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
        return 0
    if asked is None:
        asked = int(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))
    return max(asked, 1) if asked < 0 else asked
