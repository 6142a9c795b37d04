# SPDX-License-Identifier: Apache-2.0
"""The three kinds of patch: merge, strategic merge, JSON patch. None changes its input."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

MERGE_KEYS = {
    "conditions": "type",
    "addresses": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "containerStatuses": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
    "schedulingGates": "name",
    "webhooks": "name",
    "matchConditions": "name",
    "hostAliases": "ip",
}
"""Lists that strategic merge joins item by item, and the key that tells items apart."""
_SETS = frozenset({"finalizers"})
"""Lists of plain values that strategic merge joins."""


class PatchError(ValueError):
    """A patch that can't be applied to this object."""


def merge(target: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7396): null removes, lists are replaced."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def merge_strategically(target: Any, patch: Any) -> Any:
    """Apply a strategic merge patch: as `merge`, and lists with a merge key item by item."""
    if not isinstance(patch, dict):
        return patch
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$setElementOrder/"):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            result[field] = [item for item in result.get(field) or () if item not in value]
        elif key == "$retainKeys":
            result = {name: kept for name, kept in result.items() if name in value}
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _merge_list(key, result.get(key), value)
        else:
            result[key] = merge_strategically(result.get(key), value)
    return result


def _merge_list(field: str, target: Any, patch: list[Any]) -> list[Any]:
    current = list(target) if isinstance(target, list) else []
    if field in _SETS:
        return current + [item for item in patch if item not in current]
    merge_key = MERGE_KEYS.get(field)
    if merge_key is None or not all(isinstance(item, dict) for item in patch):
        return patch
    if any(item.get("$patch") == "replace" and len(item) == 1 for item in patch):
        return [item for item in patch if item != {"$patch": "replace"}]
    for item in patch:
        if merge_key not in item:
            raise PatchError(f"map: {item} does not contain declared merge key: {merge_key}")
        found = next(
            (i for i, old in enumerate(current) if old.get(merge_key) == item[merge_key]), None
        )
        if item.get("$patch") == "delete":
            if found is not None:
                del current[found]
        elif found is None:
            current.append(merge_strategically({}, item))
        else:
            current[found] = merge_strategically(current[found], item)
    return current


def apply_json_patch(target: Any, operations: Any) -> Any:
    """Apply a JSON patch (RFC 6902) to a copy.

    Raises:
        PatchError: when an operation is malformed, points nowhere, or a `test` fails.
    """
    if not isinstance(operations, list):
        raise PatchError("a JSON patch is a list of operations")
    document = copy.deepcopy(target)
    for operation in operations:
        try:
            document = _apply_one(document, operation)
        except (KeyError, TypeError, IndexError) as err:
            raise PatchError(f"operation {operation!r} can't be applied: {err!r}") from err
    return document


def _steps(pointer: str) -> list[str]:
    if pointer == "":
        return []
    if not pointer.startswith("/"):
        raise PatchError(f"{pointer!r} is no JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]


def _index(step: str, length: int) -> int:
    if not step.isascii() or not step.isdigit() or (step != "0" and step.startswith("0")):
        raise PatchError(f"{step!r} is no index of a list")
    if int(step) >= length:
        raise PatchError(f"index {step} is beyond the list's end")
    return int(step)


def _child(parent: Any, step: str) -> Any:
    if isinstance(parent, list):
        return parent[_index(step, len(parent))]
    if not isinstance(parent, dict) or step not in parent:
        raise PatchError(f"there is no {step!r} to walk through")
    return parent[step]


def _at(document: Any, steps: list[str]) -> Any:
    for step in steps:
        document = _child(document, step)
    return document


def _add(document: Any, steps: list[str], value: Any) -> Any:
    if not steps:
        return value
    parent = _at(document, steps[:-1])
    if isinstance(parent, list):
        position = len(parent) if steps[-1] == "-" else _index(steps[-1], len(parent) + 1)
        parent.insert(position, value)
    elif isinstance(parent, dict):
        parent[steps[-1]] = value
    else:
        raise PatchError(f"nothing can be added below a {type(parent).__name__}")
    return document


def _remove(document: Any, steps: list[str]) -> Any:
    removed = _at(document, steps)
    if not steps:
        raise PatchError("the whole document can't be removed")
    parent = _at(document, steps[:-1])
    if isinstance(parent, list):
        del parent[_index(steps[-1], len(parent))]
    else:
        del parent[steps[-1]]
    return removed


def _replace(document: Any, steps: list[str], value: Any) -> Any:
    _at(document, steps)
    if not steps:
        return value
    parent = _at(document, steps[:-1])
    if isinstance(parent, list):
        parent[_index(steps[-1], len(parent))] = value
    else:
        parent[steps[-1]] = value
    return document


def _move(document: Any, origin: list[str], steps: list[str]) -> Any:
    if steps[: len(origin)] == origin and len(steps) > len(origin):
        raise PatchError("a value can't be moved into itself")
    return _add(document, steps, _remove(document, origin))


def _without(document: Any, steps: list[str]) -> Any:
    _remove(document, steps)
    return document


def _tested(document: Any, steps: list[str], value: Any) -> Any:
    if not _same(_at(document, steps), value):
        raise PatchError(f"testing value at {steps} failed")
    return document


def _same(left: Any, right: Any) -> bool:
    """Compare as JSON does: Python's True equals 1."""
    if isinstance(left, bool) is not isinstance(right, bool):
        return False
    return bool(left == right)


_OPERATIONS: dict[str, Callable[[Any, list[str], dict[str, Any]], Any]] = {
    "add": lambda doc, steps, op: _add(doc, steps, copy.deepcopy(op["value"])),
    "replace": lambda doc, steps, op: _replace(doc, steps, copy.deepcopy(op["value"])),
    "remove": lambda doc, steps, _: _without(doc, steps),
    "move": lambda doc, steps, op: _move(doc, _steps(op["from"]), steps),
    "copy": lambda doc, steps, op: _add(doc, steps, copy.deepcopy(_at(doc, _steps(op["from"])))),
    "test": lambda doc, steps, op: _tested(doc, steps, op["value"]),
}


def _apply_one(document: Any, operation: dict[str, Any]) -> Any:
    apply = _OPERATIONS.get(operation["op"])
    if apply is None:
        raise PatchError(f"unknown operation {operation['op']!r}")
    return apply(document, _steps(operation["path"]), operation)
