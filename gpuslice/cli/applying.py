# SPDX-License-Identifier: Apache-2.0
"""Applying and deleting manifests: what kubectl does of it that the embedded cluster needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from gpuslice.cli.kinds import DEFAULT_NAMESPACE, UnknownKindError, resource_of, singular
from gpuslice.cli.manifests import Manifest
from gpuslice.runtime.kube.errors import NotFoundError
from gpuslice.runtime.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource

Json = Mapping[str, Any]

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""kubectl's own annotation, so that both can be used on one object."""
_FIRST: Final = ("Namespace", "CustomResourceDefinition")
"""Kinds that other objects of the same files may need."""


class Api(Protocol):
    """What these commands need of an API server: `KubeClient`, or an imitation."""

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> dict[str, Any]:
        """Return an object."""

    def list(self, resource: Resource, *, namespace: str = "") -> tuple[dict[str, Any], ...]:
        """Return all objects of a kind."""

    def create(self, resource: Resource, thing: Json, *, namespace: str = "") -> dict[str, Any]:
        """Create an object."""

    def patch(
        self, resource: Resource, name: str, patch: Json, *, namespace: str = ""
    ) -> dict[str, Any]:
        """Merge a body into an object."""

    def delete(self, resource: Resource, name: str, *, namespace: str = "") -> dict[str, Any]:
        """Delete an object."""


def definitions(api: Api) -> Sequence[Json]:
    """Return the cluster's custom resource definitions."""
    return api.list(CUSTOM_RESOURCE_DEFINITIONS)


def in_order(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return manifests in an order in which they can be created, else unchanged."""
    return sorted(manifests, key=lambda manifest: manifest.kind not in _FIRST)


def apply(api: Api, manifest: Manifest, namespace: str | None = None) -> str:
    """Create an object, or merge its manifest into the one that is there.

    Args:
        api: where to.
        manifest: the object.
        namespace: for an object that names none.

    Returns:
        What happened, as kubectl says it; e.g. ``pod/a created``.

    Raises:
        UnknownKindError: where the cluster serves no such kind.
    """
    resource, where = _located(api, manifest, namespace)
    called = f"{singular(resource)}/{manifest.name}"
    wanted = _remembered(manifest.body)
    if "name" not in manifest.body["metadata"]:
        made = api.create(resource, wanted, namespace=where)
        return f"{singular(resource)}/{made['metadata']['name']} created"
    try:
        there = api.get(resource, manifest.name, namespace=where)
    except NotFoundError:
        api.create(resource, wanted, namespace=where)
        return f"{called} created"
    changes = merge_patch(_applied_before(there), wanted)
    if not changes:
        return f"{called} unchanged"
    api.patch(resource, manifest.name, changes, namespace=where)
    return f"{called} configured"


def merge_patch(before: Json, after: Json) -> dict[str, Any]:
    """Return the merge patch (RFC 7386) that leads from one object to another."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := merge_patch(old, value):
                patch[key] = inner
        elif value != old or key not in before:
            patch[key] = value
    return patch


def _remembered(body: Json) -> dict[str, Any]:
    """Return a manifest that bears its own text, as kubectl leaves it.

    What admission or a controller has changed since is then not taken for the author's change: a
    pod that is applied again must not get its old scheduler back.
    """
    metadata = body["metadata"]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    annotations = {**(metadata.get("annotations") or {}), LAST_APPLIED: text}
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def _applied_before(there: Json) -> dict[str, Any]:
    """Return the manifest that an object was last applied from, with its own text."""
    annotations = there["metadata"].get("annotations") or {}
    try:
        return _remembered(json.loads(annotations[LAST_APPLIED]))
    except (KeyError, ValueError, TypeError):
        return {}


def delete(api: Api, manifest: Manifest, namespace: str | None = None) -> str:
    """Delete an object of a manifest, and return what happened."""
    resource, where = _located(api, manifest, namespace)
    return delete_named(api, resource, manifest.name, where)


def delete_named(api: Api, resource: Resource, name: str, namespace: str | None = None) -> str:
    """Delete an object by its name, and return what happened."""
    called = f"{singular(resource)}/{name}"
    try:
        api.delete(resource, name, namespace=namespace or DEFAULT_NAMESPACE)
    except NotFoundError:
        return f"{called} not found"
    return f"{called} deleted"


def _located(api: Api, manifest: Manifest, namespace: str | None) -> tuple[Resource, str]:
    try:
        resource = resource_of(manifest.body)
    except UnknownKindError:
        resource = resource_of(manifest.body, definitions(api))
    return resource, manifest.namespace or namespace or DEFAULT_NAMESPACE
