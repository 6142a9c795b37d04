# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors, from their text and from their object form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Matcher = Callable[[Mapping[str, Any]], bool]
"""Says whether an object is selected."""
Labels = Mapping[str, str]

_SET_BASED = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUALITY = re.compile(r"(?P<key>[^\s!=,()]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s!=,()]*)")
_EXISTENCE = re.compile(r"(?P<absent>!?)\s*(?P<key>[^\s!=,()]+)")

_FIELDS = {
    ("", "pods"): {
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    },
    ("", "nodes"): {"spec.unschedulable"},
    ("", "namespaces"): {"status.phase"},
    ("", "secrets"): {"type"},
    ("", "events"): {
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    },
}
_EVERY_KIND = frozenset({"metadata.name", "metadata.namespace"})


class SelectorError(ValueError):
    """A selector's text that can't be read."""


def _requirements(text: str) -> list[str]:
    """Split at the commas outside of parentheses."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [part for part in (*parts, text[start:]) if part.strip()]


def _one_label(requirement: str) -> Callable[[Labels], bool]:
    text = requirement.strip()
    if found := _SET_BASED.fullmatch(text):
        values = frozenset(value.strip() for value in found["values"].split(","))
        return _operator(found["key"], "In" if found["operator"] == "in" else "NotIn", values)
    if found := _EQUALITY.fullmatch(text):
        operator = "NotIn" if found["operator"] == "!=" else "In"
        return _operator(found["key"], operator, frozenset({found["value"]}))
    if found := _EXISTENCE.fullmatch(text):
        return _operator(found["key"], "DoesNotExist" if found["absent"] else "Exists", frozenset())
    raise SelectorError(f"unable to parse requirement: {text!r}")


def _operator(key: str, operator: str, values: frozenset[str]) -> Callable[[Labels], bool]:
    table: dict[str, Callable[[Labels], bool]] = {
        "In": lambda labels: labels.get(key) in values,
        # As in Kubernetes, an object without the key is selected too.
        "NotIn": lambda labels: labels.get(key) not in values,
        "Exists": lambda labels: key in labels,
        "DoesNotExist": lambda labels: key not in labels,
    }
    if operator not in table:
        raise SelectorError(f"{operator!r} is not a valid label selector operator")
    return table[operator]


def labels_of(item: Mapping[str, Any]) -> Labels:
    return (item.get("metadata") or {}).get("labels") or {}


def parse_labels(text: str) -> Matcher:
    """Read a `labelSelector`: equality, existence and set-based, joined by commas."""
    checks = [_one_label(requirement) for requirement in _requirements(text)]
    return lambda item: all(check(labels_of(item)) for check in checks)


def from_object(selector: Mapping[str, Any] | None) -> Callable[[Labels], bool]:
    """Read a LabelSelector object: `matchLabels` and `matchExpressions`; empty takes all."""
    selector = selector or {}
    checks = [
        _operator(key, "In", frozenset({value}))
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    checks += [
        _operator(one["key"], one["operator"], frozenset(one.get("values") or ()))
        for one in selector.get("matchExpressions") or ()
    ]
    return lambda labels: all(check(labels) for check in checks)


def _field(item: Mapping[str, Any], path: str) -> str:
    value: Any = item
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return str(value).lower()
    if path == "source" and isinstance(value, Mapping):
        value = value.get("component")
    return "" if value is None else str(value)


def parse_fields(text: str, resource: tuple[str, str]) -> Matcher:
    """Read a `fieldSelector` for a resource.

    Raises:
        SelectorError: for a field that a real server doesn't select by, or a text that is none.
    """
    known = _EVERY_KIND | _FIELDS.get(resource, set())
    checks: list[tuple[str, str, bool]] = []
    for part in _requirements(text):
        found = _EQUALITY.fullmatch(part.strip())
        if found is None:
            raise SelectorError(f"invalid field selector: {part!r}")
        if found["key"] not in known:
            raise SelectorError(f"field label not supported: {found['key']}")
        checks.append((found["key"], found["value"], found["operator"] != "!="))
    return lambda item: all(
        (_field(item, path) == value) is wanted for path, value, wanted in checks
    )


def parse(label_text: str, field_text: str, resource: tuple[str, str]) -> Matcher | None:
    """Join both selectors of a request; None where there is none."""
    matchers = []
    if label_text:
        matchers.append(parse_labels(label_text))
    if field_text:
        matchers.append(parse_fields(field_text, resource))
    if not matchers:
        return None
    return lambda item: all(matches(item) for matches in matchers)
