# SPDX-License-Identifier: Apache-2.0
"""Which writes a webhook or a policy is about: rules, and the two selectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuslice.sim.apiserver import selectors
from gpuslice.sim.apiserver.kinds import (
    MUTATING_HOOKS,
    NAMESPACES,
    POLICIES,
    POLICY_BINDINGS,
    VALIDATING_HOOKS,
)

if TYPE_CHECKING:
    from gpuslice.sim.apiserver.calls import Attributes

Labels = Mapping[str, str]
NamespaceLabels = Callable[[str], Labels]
"""Looks up the labels of a namespace."""

_EXEMPT = frozenset(
    kind.resource for kind in (MUTATING_HOOKS, VALIDATING_HOOKS, POLICIES, POLICY_BINDINGS)
)
"""Resources that no webhook sees: a bad one could otherwise never be repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Rules of which one must hold, and selectors of which all must."""

    rules: tuple[Mapping[str, Any], ...]
    excluded: tuple[Mapping[str, Any], ...] = ()
    selects_namespace: Callable[[Labels], bool]
    selects_object: Callable[[Labels], bool]

    @classmethod
    def read(
        cls,
        spec: Mapping[str, Any],
        *,
        rules: str = "rules",
        excluded: str = "excludeResourceRules",
    ) -> Match:
        """Read the matching fields of a webhook, or of a policy's `matchConstraints`."""
        return cls(
            rules=tuple(spec.get(rules) or ()),
            excluded=tuple(spec.get(excluded) or ()),
            selects_namespace=selectors.from_object(spec.get("namespaceSelector")),
            selects_object=selectors.from_object(spec.get("objectSelector")),
        )

    def holds(self, attributes: Attributes, namespace_labels: NamespaceLabels) -> bool:
        if attributes.target.kind.resource in _EXEMPT:
            return False
        if not any(_rule_holds(rule, attributes) for rule in self.rules):
            return False
        if any(_rule_holds(rule, attributes) for rule in self.excluded):
            return False
        return self._in_namespace(attributes, namespace_labels) and self._of_object(attributes)

    def _in_namespace(self, attributes: Attributes, namespace_labels: NamespaceLabels) -> bool:
        if attributes.target.kind is NAMESPACES:
            own = attributes.content or attributes.before or {}
            return self.selects_namespace(selectors.labels_of(own))
        if not attributes.target.namespace:
            return True
        return self.selects_namespace(namespace_labels(attributes.target.namespace))

    def _of_object(self, attributes: Attributes) -> bool:
        return any(
            self.selects_object(selectors.labels_of(content))
            for content in (attributes.content, attributes.before)
            if content is not None
        )


def _has(allowed: Any, value: str) -> bool:
    return "*" in allowed or value in allowed


def _rule_holds(rule: Mapping[str, Any], attributes: Attributes) -> bool:
    target = attributes.target
    scope = "Namespaced" if target.kind.namespaced else "Cluster"
    names = rule.get("resourceNames") or ()
    return (
        _has(rule.get("operations") or (), attributes.operation)
        and _has(rule.get("apiGroups") or (), target.kind.group)
        and _has(rule.get("apiVersions") or (), target.kind.version)
        and rule.get("scope", "*") in {"*", scope}
        and (not names or target.name in names)
        and any(
            _resource_holds(pattern, target.kind.plural, target.subresource)
            for pattern in rule.get("resources") or ()
        )
    )


def _resource_holds(pattern: str, plural: str, subresource: str) -> bool:
    resource, _, sub = pattern.partition("/")
    return resource in {"*", plural} and (sub == subresource or (sub == "*" and "/" in pattern))
