# SPDX-License-Identifier: Apache-2.0
"""Applying and deleting manifests: what kubectl does of it that the embedded cluster needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from gpuslice.cli.kinds import DEFAULT_NAMESPACE, UnknownKindError, resource_of, singular
from gpuslice.cli.manifests import Manifest
from gpuslice.runtime.kube.errors import NotFoundError
from gpuslice.runtime.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource

Json = Mapping[str, Any]

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
    if "name" not in manifest.body["metadata"]:
        made = api.create(resource, manifest.body, namespace=where)
        return f"{singular(resource)}/{made['metadata']['name']} created"
    try:
        before = api.get(resource, manifest.name, namespace=where)
    except NotFoundError:
        api.create(resource, manifest.body, namespace=where)
        return f"{called} created"
    after = api.patch(resource, manifest.name, manifest.body, namespace=where)
    versions = [each["metadata"].get("resourceVersion") for each in (before, after)]
    return f"{called} {'unchanged' if versions[0] == versions[1] else 'configured'}"


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
