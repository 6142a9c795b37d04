# SPDX-License-Identifier: Apache-2.0
"""A JSON patch in words: what admission changes of a pod, one line for each value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Json = Mapping[str, Any]

_KEYED: Final = ("labels", "annotations", "limits", "requests", "nodeSelector")
"""Maps whose keys people know by name: shown as ``labels["key"]``."""
_NAMED: Final = ("containers", "initContainers")
"""Lists whose members people know by name: shown as ``containers["name"]``."""
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_OPERATORS: Final = {"Gt": "above", "Lt": "below", "In": "in"}


def lines_of(pod: Json, operations: Sequence[Json]) -> list[str]:
    """Return what a patch does to a pod, in its order.

    Args:
        pod: the object that the patch is for.
        operations: JSON patch operations: add, replace, remove.
    """
    return [line for operation in operations for line in _lines(pod, operation)]


def _preference(term: Json) -> str:
    expressions = " and ".join(
        f"{each['key']} {_OPERATORS.get(each['operator'], each['operator'])} "
        f"{', '.join(each.get('values') or ())}".rstrip()
        for each in term["preference"]["matchExpressions"]
    )
    return f"prefers nodes with {expressions} (weight {term['weight']})"


def _lines(pod: Json, operation: Json) -> Iterator[str]:
    path = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    before = _value_at(pod, path)
    if operation["op"] == "remove":
        yield f"removes {_shown_path(pod, path)} (was {_shown(before)})"
        return
    if path[-2:] == [_PREFERRED, "-"]:
        yield _preference(operation["value"])
        return
    for leaf, value in _leaves(path, operation["value"]):
        where = _shown_path(pod, leaf)
        old = _value_at(pod, leaf)
        if leaf[-1] == "-" or old is None:
            yield f"sets {where} = {_shown(value)}"
        elif old == value:
            continue
        else:
            yield f"changes {where} from {_shown(old)} to {_shown(value)}"


def _leaves(path: list[str], value: object) -> Iterator[tuple[list[str], object]]:
    if isinstance(value, Mapping) and value and path[-1] != "-":
        for key, inner in value.items():
            yield from _leaves([*path, str(key)], inner)
    elif value not in ({}, []):  # an empty one only makes room for what follows
        yield path, value


def _value_at(item: object, path: Sequence[str]) -> object:
    for part in path:
        if isinstance(item, Mapping):
            item = item.get(part)
        elif isinstance(item, list) and part.isdigit() and int(part) < len(item):
            item = item[int(part)]
        else:
            return None
    return item


def _shown_path(pod: Json, path: Sequence[str]) -> str:
    text = ""
    for position, part in enumerate(path):
        above = path[position - 1] if position else ""
        if part == "-":
            text += "[new]"
        elif above in _KEYED:
            text += f'["{part}"]'
        elif above in _NAMED:
            member = _value_at(pod, path[: position + 1])
            name = member.get("name") if isinstance(member, Mapping) else None
            text += f'["{name}"]' if name else f"[{part}]"
        elif part.isdigit():
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=True)
