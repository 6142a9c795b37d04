# SPDX-License-Identifier: Apache-2.0
"""Applying and deleting manifests: what kubectl does of it that the embedded cluster needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from gpuslice.cli.kinds import CRD, DEFAULT_NAMESPACE, Kind, UnknownKindError, kind_of
from gpuslice.cli.manifests import Manifest

Json = Mapping[str, Any]

_FIRST: Final = ("Namespace", "CustomResourceDefinition")
"""Kinds that other objects of the same files may need."""


class Api(Protocol):
    """What these commands need of an API server; paths start with ``/api``."""

    def read(self, path: str) -> dict[str, Any] | None:
        """Return an object or a list, None where there is none."""

    def create(self, path: str, body: Json) -> dict[str, Any]:
        """Create an object in a collection."""

    def merge(self, path: str, body: Json) -> dict[str, Any]:
        """Merge a body into an object."""

    def delete(self, path: str) -> bool:
        """Delete an object, and return whether there was one."""


def definitions(api: Api) -> Sequence[Json]:
    """Return the cluster's custom resource definitions."""
    found = api.read(CRD.path()) or {}
    return tuple(found.get("items") or ())


def in_order(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return manifests in an order in which they can be created, else unchanged."""
    return sorted(manifests, key=lambda manifest: manifest.kind not in _FIRST)


def apply(api: Api, manifest: Manifest, namespace: str | None) -> str:
    """Create an object, or merge its manifest into the one that is there.

    Returns:
        What happened, as kubectl says it; e.g. ``pod/a created``.

    Raises:
        UnknownKindError: where the cluster serves no such kind.
    """
    kind, where = _located(api, manifest, namespace)
    called = f"{kind.singular}/{manifest.name}"
    if "name" not in manifest.body["metadata"]:
        made = api.create(kind.path(where), manifest.body)
        return f"{kind.singular}/{made['metadata']['name']} created"
    path = kind.path(where, manifest.name)
    before = api.read(path)
    if before is None:
        api.create(kind.path(where), manifest.body)
        return f"{called} created"
    after = api.merge(path, manifest.body)
    versions = [each["metadata"].get("resourceVersion") for each in (before, after)]
    return f"{called} {'unchanged' if versions[0] == versions[1] else 'configured'}"


def delete(api: Api, manifest: Manifest, namespace: str | None) -> str:
    """Delete an object of a manifest, and return what happened."""
    kind, where = _located(api, manifest, namespace)
    return delete_named(api, kind, manifest.name, where)


def delete_named(api: Api, kind: Kind, name: str, namespace: str | None) -> str:
    """Delete an object by its name, and return what happened."""
    there = api.delete(kind.path(namespace or DEFAULT_NAMESPACE, name))
    return f"{kind.singular}/{name} {'deleted' if there else 'not found'}"


def _located(api: Api, manifest: Manifest, namespace: str | None) -> tuple[Kind, str]:
    try:
        kind = kind_of(manifest.body)
    except UnknownKindError:
        kind = kind_of(manifest.body, definitions(api))
    return kind, manifest.namespace or namespace or DEFAULT_NAMESPACE
