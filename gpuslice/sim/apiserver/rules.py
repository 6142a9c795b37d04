# SPDX-License-Identifier: Apache-2.0
"""What the server does for certain kinds only: defaults, preparation, validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuslice.sim.apiserver import conditions, pods
from gpuslice.sim.apiserver.kinds import (
    CRDS,
    MUTATING_HOOKS,
    NAMESPACES,
    NODES,
    PODS,
    POLICIES,
    VALIDATING_HOOKS,
    Kind,
)

Json = dict[str, Any]
Faults = list[tuple[str, str]]


def _unchanged(content: Json) -> Json:
    return content


def _without_status(content: Json) -> Json:
    return {key: value for key, value in content.items() if key != "status"}


def _nothing(*_: Mapping[str, Any]) -> Faults:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The four places where a kind may differ."""

    default: Callable[[Json], Json] = _unchanged
    """Fills in absent fields: after decoding, and again after admission changed something."""
    prepare: Callable[[Json], Json] = _unchanged
    """Makes a new object's first state, after admission."""
    check: Callable[[Mapping[str, Any]], Faults] = _nothing
    check_change: Callable[[Mapping[str, Any], Mapping[str, Any]], Faults] = _nothing


def _default_node(node: Json) -> Json:
    status = node.get("status") or {}
    if status.get("capacity") and not status.get("allocatable"):
        node = {**node, "status": {**status, "allocatable": dict(status["capacity"])}}
    return {**node, "spec": node.get("spec") or {}}


def _default_namespace(namespace: Json) -> Json:
    meta = dict(namespace["metadata"])
    if meta.get("name"):
        meta["labels"] = {
            **(meta.get("labels") or {}),
            "kubernetes.io/metadata.name": meta["name"],
        }
    return {**namespace, "metadata": meta, "spec": {"finalizers": ["kubernetes"]}}


def _default_hooks(configuration: Json) -> Json:
    is_mutating = configuration["kind"] == MUTATING_HOOKS.kind
    hooks = []
    for hook in configuration.get("webhooks") or ():
        filled = {
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "timeoutSeconds": 10,
            "namespaceSelector": {},
            "objectSelector": {},
            **hook,
            "rules": [{"scope": "*", **rule} for rule in hook.get("rules") or ()],
        }
        if is_mutating:
            filled.setdefault("reinvocationPolicy", "Never")
        hooks.append(filled)
    return {**configuration, "webhooks": hooks}


def _check_hooks(configuration: Mapping[str, Any]) -> Faults:
    faults: Faults = []
    for number, hook in enumerate(configuration.get("webhooks") or ()):
        path = f"webhooks[{number}]"
        if str(hook.get("name", "")).count(".") < 2:
            faults.append((f"{path}.name", "Invalid value: should have at least three segments"))
        if "v1" not in (hook.get("admissionReviewVersions") or ()):
            faults.append((f"{path}.admissionReviewVersions", "Required value: must name v1"))
        if hook.get("sideEffects") not in {"None", "NoneOnDryRun"}:
            faults.append((f"{path}.sideEffects", "Unsupported value: None or NoneOnDryRun"))
        if not 1 <= hook["timeoutSeconds"] <= 30:
            faults.append((f"{path}.timeoutSeconds", "Invalid value: must be 1 to 30 seconds"))
        faults += _check_conditions(f"{path}.matchConditions", hook.get("matchConditions") or ())
        client = hook.get("clientConfig") or {}
        if ("url" in client) is ("service" in client):
            faults.append((f"{path}.clientConfig", "Required value: exactly one of url, service"))
        elif not str(client.get("url", "https://")).startswith("https://"):
            faults.append((f"{path}.clientConfig.url", "Invalid value: must begin with https://"))
    return faults


def _check_conditions(path: str, listed: Sequence[Mapping[str, str]]) -> Faults:
    return [
        (f"{path}[{number}].expression", f"Invalid value: {fault}")
        for number, condition in enumerate(listed)
        if (fault := conditions.check(condition.get("expression", "")))
    ]


def _check_policy(policy: Mapping[str, Any]) -> Faults:
    spec = policy.get("spec") or {}
    return [
        fault
        for field in ("matchConditions", "variables", "validations")
        for fault in _check_conditions(f"spec.{field}", spec.get(field) or ())
    ]


def _check_crd(crd: Mapping[str, Any]) -> Faults:
    spec = crd.get("spec") or {}
    names = spec.get("names") or {}
    faults = [
        (f"spec.{field}", "Required value")
        for field in ("group", "versions", "names", "scope")
        if not spec.get(field)
    ]
    faults += [
        (f"spec.names.{field}", "Required value")
        for field in ("plural", "kind")
        if not names.get(field)
    ]
    expected = f"{names.get('plural')}.{spec.get('group')}"
    if not faults and crd["metadata"]["name"] != expected:
        faults.append(("metadata.name", f"Invalid value: must be {expected}"))
    return faults


def _established(crd: Json) -> Json:
    names = crd["spec"]["names"] if "names" in (crd.get("spec") or {}) else {}
    return {
        **crd,
        "status": {
            "acceptedNames": names,
            "conditions": [
                {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts"},
                {"type": "Established", "status": "True", "reason": "InitialNamesAccepted"},
            ],
            "storedVersions": [
                version["name"]
                for version in (crd.get("spec") or {}).get("versions") or ()
                if version.get("storage")
            ],
        },
    }


_SPECIAL = {
    PODS.resource: Rules(
        default=pods.default,
        prepare=pods.reset,
        check=pods.check,
        check_change=pods.check_change,
    ),
    # A kubelet registers its Node together with its first status.
    NODES.resource: Rules(default=_default_node),
    NAMESPACES.resource: Rules(
        default=_default_namespace,
        prepare=lambda namespace: {**namespace, "status": {"phase": "Active"}},
    ),
    CRDS.resource: Rules(prepare=_established, check=_check_crd),
    MUTATING_HOOKS.resource: Rules(default=_default_hooks, check=_check_hooks),
    VALIDATING_HOOKS.resource: Rules(default=_default_hooks, check=_check_hooks),
    POLICIES.resource: Rules(prepare=_without_status, check=_check_policy),
}
_PLAIN = Rules()
_WITH_STATUS = Rules(prepare=_without_status)


def rules_of(kind: Kind) -> Rules:
    return _SPECIAL.get(kind.resource, _WITH_STATUS if kind.has_status else _PLAIN)
