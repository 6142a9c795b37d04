# SPDX-License-Identifier: Apache-2.0
"""Kinds: which objects of the API server a manifest or a person means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpuslice.runtime.kube import resources
from gpuslice.runtime.kube.resources import Resource

Json = Mapping[str, Any]

DEFAULT_NAMESPACE: Final = "default"

_BUILT_IN: Final[Mapping[Resource, tuple[str, ...]]] = {
    resources.PODS: ("po",),
    resources.NODES: ("no",),
    resources.GPU_NODES: ("gn",),
    resources.GPU_SHARES: ("gs",),
    resources.NAMESPACES: ("ns",),
    resources.EVENTS: ("ev",),
    resources.CONFIG_MAPS: ("cm",),
    resources.SECRETS: (),
    resources.CUSTOM_RESOURCE_DEFINITIONS: ("crd", "crds"),
    resources.MUTATING_WEBHOOKS: (),
    resources.VALIDATING_WEBHOOKS: (),
    resources.ADMISSION_POLICIES: (),
    resources.ADMISSION_POLICY_BINDINGS: (),
}
"""With their short names."""


class UnknownKindError(LookupError):
    """No kind has that name, here."""


def singular(resource: Resource) -> str:
    """Return a kind as messages name it; e.g. ``pod``."""
    return resource.kind.lower()


def resource_of(body: Json, definitions: Iterable[Json] = ()) -> Resource:
    """Return where the object of a manifest is kept.

    Args:
        body: the object.
        definitions: the cluster's custom resource definitions.

    Raises:
        UnknownKindError: where it is neither built in nor defined.
    """
    for resource, _ in _known(definitions):
        if (resource.api_version, resource.kind) == (body["apiVersion"], body["kind"]):
            return resource
    raise UnknownKindError(
        f"the cluster serves no {body['kind']} of {body['apiVersion']}: is its definition applied?"
    )


def resource_named(text: str, definitions: Iterable[Json] = ()) -> Resource:
    """Return the kind that a person means: ``pods``, ``pod``, ``po``, ``Pod``.

    Raises:
        UnknownKindError: where there is none.
    """
    wanted = text.lower()
    for resource, short in _known(definitions):
        if wanted in (resource.plural, singular(resource), *short):
            return resource
    raise UnknownKindError(
        f'there is no kind "{text}" here; e.g. pods, nodes, gpunodes or gpushares'
    )


def _known(definitions: Iterable[Json]) -> Iterator[tuple[Resource, tuple[str, ...]]]:
    yield from _BUILT_IN.items()
    for definition in definitions:
        spec = definition["spec"]
        called = spec["names"]
        for version in spec["versions"]:
            if version.get("served"):
                resource = Resource(
                    group=spec["group"],
                    version=version["name"],
                    plural=called["plural"],
                    kind=called["kind"],
                    namespaced=spec["scope"] == "Namespaced",
                )
                yield resource, tuple(called.get("shortNames") or ())
