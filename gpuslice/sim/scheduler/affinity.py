# SPDX-License-Identifier: Apache-2.0
"""Node selectors and node affinity.

Source: Kubernetes component-helpers/scheduling/corev1/nodeaffinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gpuslice.sim.scheduler.views import Json, Node, Pod


def _compares(values: Sequence[str], value: str | None, holds: Callable[[int, int], bool]) -> bool:
    try:
        return value is not None and len(values) == 1 and holds(int(value), int(values[0]))
    except ValueError:
        return False


_OPERATORS: Final[Mapping[str, Callable[[Sequence[str], str | None], bool]]] = {
    "In": lambda values, value: value in values,
    "NotIn": lambda values, value: value not in values,
    "Exists": lambda _values, value: value is not None,
    "DoesNotExist": lambda _values, value: value is None,
    "Gt": lambda values, value: _compares(values, value, lambda left, right: left > right),
    "Lt": lambda values, value: _compares(values, value, lambda left, right: left < right),
}


def _holds(requirement: Json, labels: Mapping[str, str]) -> bool:
    check = _OPERATORS.get(requirement.get("operator", ""))
    if check is None:
        return False
    return check(requirement.get("values") or (), labels.get(requirement["key"]))


def matches_term(term: Json, node: Node) -> bool:
    """Whether a node matches one term: all of its requirements. An empty term matches none."""
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    named = {"metadata.name": node.name}
    return all(_holds(each, node.labels) for each in expressions) and all(
        _holds(each, named) for each in fields
    )


def allows(pod: Pod, node: Node) -> bool:
    """Whether a pod's selector and its required affinity match a node."""
    if any(node.labels.get(key) != value for key, value in pod.node_selector.items()):
        return False
    return pod.required_terms is None or any(
        matches_term(term, node) for term in pod.required_terms
    )


def preference(pod: Pod, node: Node) -> int:
    """Return the weights of the preferred terms that a node matches, in sum."""
    return sum(
        int(term.get("weight") or 0)
        for term in pod.preferred_terms
        if _prefers(term.get("preference") or {}, node)
    )


def _prefers(term: Mapping[str, Any], node: Node) -> bool:
    return matches_term(term, node)
