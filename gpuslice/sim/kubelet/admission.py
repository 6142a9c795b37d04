# SPDX-License-Identifier: Apache-2.0
"""kubelet's own check of a pod against its node, after the scheduler's.

Source: Kubernetes v1.36, pkg/kubelet/lifecycle/predicate.go. Pure. The node is kubelet's own copy,
which lags; a pod refused here is lost for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from gpuslice.contract import pods, quantity
from gpuslice.contract.pods import Json

UNEXPECTED: Final = "UnexpectedAdmissionError"
NODE_AFFINITY: Final = "NodeAffinity"

Amounts = Mapping[str, Fraction]
"""Resource -> exact amount, in the resource's own unit (cores, bytes, pieces)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why kubelet doesn't run a pod."""

    reason: str
    """For example ``OutOfnvidia.com/gpu-slice``."""
    message: str
    """As in the pod's event; its status says it after ``Pod was rejected:``."""


def amount(text: Any) -> Fraction:
    """Return a quantity's exact value, 0 where it is none that gpuslice reads."""
    plain = str(text)
    try:
        value = quantity.parse_bytes(plain.removesuffix("m"))
    except quantity.QuantityError:
        return Fraction(0)
    return value / 1000 if plain.endswith("m") else value


def requests_of(pod: Json) -> dict[str, Fraction]:
    """Return what a pod takes of its node: its containers' sum, or its start's peak if higher.

    Source: Kubernetes v1.36, pkg/api/v1/resource/helpers.go, PodRequests.
    """
    spec = pods.spec_of(pod)
    total: dict[str, Fraction] = {}
    for container in spec.get("containers") or ():
        _add(total, _requests(container))
    peak: dict[str, Fraction] = {}
    sidecars: dict[str, Fraction] = {}
    for container in spec.get("initContainers") or ():
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(total, own)
            _add(sidecars, own)
            _raise(peak, sidecars)
        else:
            _add(own, sidecars)
            _raise(peak, own)
    _raise(total, peak)
    _add(total, _parse(spec.get("overhead") or {}))
    return total


def check(
    pod: Json, *, node: Json, others: Iterable[Json], in_use: Mapping[str, int], holds_any: bool
) -> Rejection | None:
    """Return why a node is no place for a pod, None where it is one.

    Args:
        pod: the pod.
        node: kubelet's copy of its Node.
        others: the other pods that kubelet counts as active.
        in_use: devices in use by resource, this pod's included.
        holds_any: whether this pod holds devices. Then a resource's allocatable counts as at least
            what is in use: a node status that lags behind the plugin refuses nobody.
    """
    allocatable = _parse((node.get("status") or {}).get("allocatable") or {})
    if holds_any:
        for resource, count in in_use.items():
            allocatable[resource] = max(allocatable.get(resource, Fraction(0)), Fraction(count))
    used: dict[str, Fraction] = {"pods": Fraction(0)}
    for other in others:
        _add(used, requests_of(other))
        used["pods"] += 1
    asked = requests_of(pod) | {"pods": Fraction(1)}
    for resource in sorted(asked, key=_checked_first):
        if "/" in resource and resource not in allocatable:
            continue  # removeMissingExtendedResources: the cluster's business, not the node's
        room = allocatable.get(resource, Fraction(0))
        taken = used.get(resource, Fraction(0))
        if asked[resource] > 0 and taken + asked[resource] > room:
            numbers = [_number(resource, each) for each in (asked[resource], taken, room)]
            return Rejection(
                reason=f"OutOf{resource}",
                message=f"Node didn't have enough resource: {resource}, requested: {numbers[0]}, "
                f"used: {numbers[1]}, capacity: {numbers[2]}",
            )
    if not matches_node(pod, node):
        return Rejection(
            reason=NODE_AFFINITY,
            message="Predicate NodeAffinity failed: node(s) didn't match Pod's node "
            "affinity/selector",
        )
    return None


def matches_node(pod: Json, node: Json) -> bool:
    """Whether a node's labels satisfy a pod's nodeSelector and required node affinity."""
    labels = pods.labels_of(node)
    spec = pods.spec_of(pod)
    selector = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    fields = {"metadata.name": str(pods.meta_of(node).get("name"))}
    return any(
        _matches_term(term, labels, fields) for term in required.get("nodeSelectorTerms") or ()
    )


def _matches_term(term: Json, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    expressions = term.get("matchExpressions") or ()
    field_expressions = term.get("matchFields") or ()
    if not expressions and not field_expressions:
        return False  # an empty term selects nothing
    return all(_holds(each, labels) for each in expressions) and all(
        _holds(each, fields) for each in field_expressions
    )


def _holds(expression: Json, values: Mapping[str, str]) -> bool:
    """Whether one expression of a node selector holds; an operator it doesn't know never does."""
    value = values.get(str(expression.get("key")))
    wanted = expression.get("values") or []
    holds = _OPERATORS.get(str(expression.get("operator")))
    return holds is not None and holds(value, wanted)


def _greater(left: str | None, right: Sequence[str]) -> bool:
    try:
        return int(left or "") > int(right[0])
    except (ValueError, IndexError):
        return False


def _less(left: str | None, right: Sequence[str]) -> bool:
    try:
        return int(left or "") < int(right[0])
    except (ValueError, IndexError):
        return False


_OPERATORS: Final[Mapping[str, Callable[[str | None, Sequence[str]], bool]]] = {
    "In": lambda value, wanted: value in wanted,
    "NotIn": lambda value, wanted: value not in wanted,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": _greater,
    "Lt": _less,
}


def _requests(container: Json) -> dict[str, Fraction]:
    """Return a container's requests, its limits standing in where a request is missing."""
    limits, requests = (pods.resources(container, kind) for kind in ("limits", "requests"))
    return _parse({**limits, **requests})


def _parse(texts: Mapping[str, Any]) -> dict[str, Fraction]:
    return {resource: amount(text) for resource, text in texts.items()}


def _add(total: dict[str, Fraction], more: Amounts) -> None:
    for resource, value in more.items():
        total[resource] = total.get(resource, Fraction(0)) + value


def _raise(total: dict[str, Fraction], least: Amounts) -> None:
    for resource, value in least.items():
        total[resource] = max(total.get(resource, Fraction(0)), value)


def _checked_first(resource: str) -> tuple[int, str]:
    order = ("pods", "cpu", "memory", "ephemeral-storage")
    return (order.index(resource) if resource in order else len(order), resource)


def _number(resource: str, value: Fraction) -> int:
    """Return an amount as kubelet prints it: CPU in thousandths."""
    return int(value * 1000 if resource == "cpu" else value)
