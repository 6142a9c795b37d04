# SPDX-License-Identifier: Apache-2.0
"""Whether what is installed is all there, of one version, and of one mind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from gpuslice.cli.doctor.findings import Finding, Severity
from gpuslice.cli.doctor.snapshot import NODES_NAMESPACE, WEBHOOK_NAMESPACE, Json, Snapshot
from gpuslice.cli.doctor.webhook_checks import INSTALL
from gpuslice.contract import names, pods

OLDEST: Final = (1, 34)
POLICIES: Final = ("gpuslice-pods", "gpuslice-agents")
CRDS: Final = "kubectl apply -f deploy/crds"
_CLAIM: Final = "status.claims[]"
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    f"gpunodes.{names.GROUP}": (
        *(f"spec.{each}" for each in ("mode", "sliceBy")),
        *(
            f"spec.gpus[].{each}"
            for each in (
                *("uuid", "index", "product", "memoryMiB", "reservedMiB", "slices"),
                *("numaNode", "migParent", "healthy", "reason"),
            )
        ),
        "status.serving",
        *(
            f"{_CLAIM}.{each}"
            for each in ("pod", "container", "share", "fit", "state", "podGone", "binds", "shape")
        ),
        *(f"{_CLAIM}.shape[].{each}" for each in ("gpu", "memoryMiB", "slices")),
        "status.summary",
    ),
    f"gpushares.{names.GROUP}": ("spec.share", "spec.slices"),
}
"""What gpuslice writes: the API server drops what a schema doesn't know."""


def versions(snapshot: Snapshot) -> Iterator[Finding]:
    """The API server is one that gpuslice supports."""
    found = re.match(r"v?(\d+)\.(\d+)", snapshot.version)
    if found and (int(found[1]), int(found[2])) < OLDEST:
        yield Finding(
            check="kubernetes",
            subject="API server",
            problem=f"it is {snapshot.version}; supported are {OLDEST[0]}.{OLDEST[1]} and newer",
            fix="upgrade Kubernetes",
        )


def definitions(snapshot: Snapshot) -> Iterator[Finding]:
    """Our kinds are defined, with every field that we write."""
    if snapshot.is_unreadable("definitions"):
        return
    there = {str(pods.meta_of(each)["name"]): each for each in snapshot.definitions}
    for name, fields in FIELDS.items():
        subject = f"customresourcedefinition/{name}"
        if name not in there:
            yield Finding(check="definitions", subject=subject, problem="it is not there", fix=CRDS)
            continue
        schema = _schema(there[name])
        missing = [each for each in fields if not _knows(schema, each)]
        if schema is None:
            problem = f"it doesn't serve {names.VERSION}"
        elif missing:
            problem = f"it is of another version: it doesn't know {', '.join(missing)}"
        else:
            continue
        yield Finding(check="definitions", subject=subject, problem=problem, fix=CRDS)


def _schema(definition: Json) -> Json | None:
    for version in pods.spec_of(definition).get("versions") or ():
        if version.get("name") == names.VERSION and version.get("served"):
            found: Json = (version.get("schema") or {}).get("openAPIV3Schema") or {}
            return found
    return None


def _knows(schema: Json | None, path: str) -> bool:
    for step in path.split("."):
        schema = ((schema or {}).get("properties") or {}).get(step.removesuffix("[]"))
        if step.endswith("[]"):
            schema = (schema or {}).get("items")
    return schema is not None


def policies(snapshot: Snapshot) -> Iterator[Finding]:
    """Nobody may change what admission and the arbiter wrote."""
    if snapshot.is_unreadable("policies"):
        return
    there = {pods.meta_of(each)["name"] for each in snapshot.policies}
    bound = {pods.spec_of(each).get("policyName") for each in snapshot.policy_bindings}
    for name in POLICIES:
        if name not in there or name not in bound:
            what = "it is not there" if name not in there else "no binding puts it in force"
            yield Finding(
                check="policies",
                subject=f"validatingadmissionpolicy/{name}",
                problem=f"{what}: what gpuslice writes on pods and nodes is not protected",
                fix=INSTALL,
                severity=Severity.WARNING,
            )


def settings(snapshot: Snapshot) -> Iterator[Finding]:
    """Both halves read the same settings."""
    if snapshot.is_unreadable("settings"):
        return
    for each in snapshot.settings_files:
        if each.error:
            yield Finding(
                check="settings",
                subject=f"configmap/gpuslice-settings in {each.namespace}",
                problem=f"its settings can't be used: {each.error}",
                fix=f"kubectl -n {each.namespace} edit configmap gpuslice-settings",
            )
    usable = [each for each in snapshot.settings_files if each.settings is not None]
    if len(snapshot.settings_files) < len((WEBHOOK_NAMESPACE, NODES_NAMESPACE)):
        there = ", ".join(each.namespace for each in snapshot.settings_files) or "no namespace"
        yield Finding(
            check="settings",
            subject="configmap/gpuslice-settings",
            problem=f"it must stand in the webhook's and the device plugin's namespace; "
            f"it stands in {there}",
            fix=INSTALL,
        )
    for other in usable[1:]:
        different = list(_differences(usable[0].settings, other.settings))
        if different:
            yield Finding(
                check="settings",
                subject=f"configmap/gpuslice-settings in {other.namespace}",
                problem=f"it differs from that in {usable[0].namespace}: {'; '.join(different)}",
                fix="make both equal, then restart both halves (docs/settings.md)",
            )


def _differences(one: Any, other: Any, prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, msgspec.Struct):
            yield from _differences(mine, theirs, f"{prefix}{field.encode_name}.")
        elif mine != theirs:
            yield f"{prefix}{field.encode_name} is {mine} there and {theirs} here"


def unreadable(snapshot: Snapshot) -> Iterator[Finding]:
    """Everything could be looked at."""
    for what, why in snapshot.unreadable:
        yield Finding(
            check="access",
            subject=what,
            problem=f"it couldn't be read, so its checks were left out: {why}",
            fix="run doctor as a user who may read it",
            severity=Severity.WARNING,
        )
