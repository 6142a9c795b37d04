# SPDX-License-Identifier: Apache-2.0
"""The shape of a pod, as far as admission reads it.

The API server sends typed pods, so a wrong shape never comes from it. Checked once at the door,
so that nothing behind it fails on a list where a map should be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]


class ShapeError(ValueError):
    """An object is no pod."""


def check_pod(pod: Json) -> None:
    """Accept what the API server may send: any of the fields may be missing or null.

    Raises:
        ShapeError: where a field that admission reads is of the wrong type.
    """
    about = _map(pod, "metadata")
    for key in ("annotations", "labels"):
        _check_texts(_map(about, key), f"metadata.{key}")
    for key in ("name", "generateName", "namespace"):
        _check_text(about.get(key), f"metadata.{key}")
    spec = _map(pod, "spec")
    for key in ("nodeName", "schedulerName", "runtimeClassName"):
        _check_text(spec.get(key), f"spec.{key}")
    for group in ("containers", "initContainers"):
        for container in _maps(spec, group):
            _check_container(container, f"spec.{group}")
    affinity = _map(_map(spec, "affinity"), "nodeAffinity")
    for term in _maps(affinity, "preferredDuringSchedulingIgnoredDuringExecution"):
        preference = _map(term, "preference")
        for key in ("matchExpressions", "matchFields"):
            for expression in _maps(preference, key):
                _check_text(expression.get("key"), f"an affinity's {key}")


def _check_container(container: Json, where: str) -> None:
    _check_text(container.get("name"), f"{where}: a name")
    _check_text(container.get("restartPolicy"), f"{where}: a restartPolicy")
    resources = _map(container, "resources")
    for kind in ("limits", "requests"):
        for amount in _map(resources, kind).values():
            if isinstance(amount, bool) or not isinstance(amount, str | int | float):
                raise ShapeError(f"{where}: an amount in {kind} is neither text nor number")
    names = [variable.get("name") for variable in _maps(container, "env")]
    if not all(name is None or isinstance(name, str) for name in names):
        raise ShapeError(f"{where}: a variable's name is no text")


def _map(item: Json, key: str) -> Json:
    value = item.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ShapeError(f"{key} is no map")
    return value


def _maps(item: Json, key: str) -> list[Json]:
    value = item.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ShapeError(f"{key} is no list of maps")
    return value


def _check_text(value: object, where: str) -> None:
    if value is not None and not isinstance(value, str):
        raise ShapeError(f"{where} is no text")


def _check_texts(item: Json, where: str) -> None:
    for value in item.values():
        if not isinstance(value, str):
            raise ShapeError(f"{where} holds what is no text")
