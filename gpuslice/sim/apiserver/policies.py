# SPDX-License-Identifier: Apache-2.0
"""ValidatingAdmissionPolicies: CEL in the server itself, without parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuslice.sim.apiserver import conditions, failures, reviews
from gpuslice.sim.apiserver.failures import ApiError
from gpuslice.sim.apiserver.matching import Match

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuslice.sim.apiserver.calls import Attributes
    from gpuslice.sim.apiserver.matching import NamespaceLabels

Json = dict[str, Any]

_CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One policy with one of its bindings."""

    name: str
    binding: str
    match: Match
    binding_match: Match | None
    match_conditions: tuple[Mapping[str, str], ...]
    variables: tuple[Mapping[str, str], ...]
    validations: tuple[Mapping[str, str], ...]
    ignores_failure: bool
    actions: frozenset[str]

    def check(
        self,
        attributes: Attributes,
        namespace_labels: NamespaceLabels,
        namespace_object: Callable[[str], Json | None],
    ) -> None:
        """Judge a write.

        Raises:
            ApiError: when a validation is false, or an error that isn't ignored.
        """
        if not self.match.holds(attributes, namespace_labels):
            return
        if self.binding_match is not None and not self.binding_match.holds(
            attributes, namespace_labels
        ):
            return
        known = {
            "object": attributes.content,
            "oldObject": attributes.before,
            "request": reviews.request(attributes),
            "namespaceObject": namespace_object(attributes.target.namespace),
        }
        try:
            if not conditions.all_hold(self.match_conditions, known):
                return
        except conditions.ConditionError as err:
            if not self.ignores_failure:
                self._fail(attributes, str(err), "Invalid")
            return
        known["variables"] = self._variables(known)
        for validation in self.validations:
            self._validate(attributes, validation, known)

    def _variables(self, known: Mapping[str, Any]) -> Json:
        """Evaluate the policy's variables. One that is an error stays absent: reading it fails."""
        values: Json = {}
        for variable in self.variables:
            try:
                values[variable["name"]] = conditions.evaluate(
                    variable["expression"], {**known, "variables": values}
                )
            except conditions.ConditionError:
                continue
        return values

    def _validate(
        self, attributes: Attributes, validation: Mapping[str, str], known: Mapping[str, Any]
    ) -> None:
        expression = validation["expression"]
        try:
            if conditions.holds(expression, known):
                return
        except conditions.ConditionError as err:
            if not self.ignores_failure:
                self._fail(attributes, f"expression '{expression}' resulted in error: {err}", "")
            return
        message = validation.get("message") or f"failed expression: {expression}"
        if validation.get("messageExpression"):
            try:
                said = conditions.evaluate(validation["messageExpression"], known)
                message = said if isinstance(said, str) and said.strip() else message
            except conditions.ConditionError:
                pass
        self._fail(attributes, message, validation.get("reason", ""))

    def _fail(self, attributes: Attributes, message: str, reason: str) -> None:
        said = f"ValidatingAdmissionPolicy '{self.name}' with binding '{self.binding}'"
        if "Warn" in self.actions:
            attributes.warn(f"Validation failed for {said}: {message}")
        if "Deny" not in self.actions:
            return
        target = attributes.target
        reason = reason or "Invalid"
        raise ApiError(
            _CODES.get(reason, 422),
            reason,
            f'{target.kind.qualified} "{target.name}" is forbidden: {said} denied request: '
            f"{message}",
            details=failures.about(target.kind, target.name),
        )


def read(
    policies: Iterable[Mapping[str, Any]], bindings: Iterable[Mapping[str, Any]]
) -> tuple[Policy, ...]:
    """Join the policies and their bindings, ordered by both names."""
    specs = {str(policy["metadata"]["name"]): policy["spec"] for policy in policies}
    joined = sorted(
        (binding["spec"]["policyName"], binding["metadata"]["name"], binding["spec"])
        for binding in bindings
        if binding["spec"].get("policyName") in specs
    )
    return tuple(
        _policy(name, binding, specs[name], binding_spec) for name, binding, binding_spec in joined
    )


def _policy(
    name: str, binding: str, spec: Mapping[str, Any], binding_spec: Mapping[str, Any]
) -> Policy:
    own = binding_spec.get("matchResources")
    return Policy(
        name=name,
        binding=binding,
        match=Match.read(spec.get("matchConstraints") or {}, rules="resourceRules"),
        binding_match=_binding_match(own) if own else None,
        match_conditions=tuple(spec.get("matchConditions") or ()),
        variables=tuple(spec.get("variables") or ()),
        validations=tuple(spec.get("validations") or ()),
        ignores_failure=spec.get("failurePolicy", "Fail") == "Ignore",
        actions=frozenset(binding_spec.get("validationActions") or ()),
    )


_ANY_RULE = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}


def _binding_match(spec: Mapping[str, Any]) -> Match:
    """Read a binding's own limits: without rules it takes whatever its policy takes."""
    rules = spec.get("resourceRules") or [_ANY_RULE]
    return Match.read({**spec, "resourceRules": rules}, rules="resourceRules")
