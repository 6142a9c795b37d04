# SPDX-License-Identifier: Apache-2.0
"""Kinds: where the API keeps the objects of each, by the names that people use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuslice.contract import names

Json = Mapping[str, Any]

DEFAULT_NAMESPACE: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of object, as the API serves it."""

    api_version: str
    """E.g. ``v1`` or ``gpuslice.dev/v1alpha1``."""
    name: str
    """E.g. ``Pod``."""
    plural: str
    """E.g. ``pods``."""
    namespaced: bool
    short: tuple[str, ...] = ()
    """Further names for it on the command line; e.g. ``gn``."""

    @property
    def singular(self) -> str:
        """As messages name it; e.g. ``pod``."""
        return self.name.lower()

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Return the path of one object, of a namespace's, or of all."""
        root = "/api" if "/" not in self.api_version else "/apis"
        parts = [root, self.api_version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        return "/".join(parts)


def _core(name: str, *short: str, namespaced: bool = True) -> Kind:
    plural = f"{name.lower()}s"
    return Kind(api_version="v1", name=name, plural=plural, namespaced=namespaced, short=short)


def _ours(name: str, *short: str) -> Kind:
    return Kind(
        api_version=names.API_VERSION,
        name=name,
        plural=f"{name.lower()}s",
        namespaced=False,
        short=short,
    )


POD: Final = _core("Pod", "po")
NODE: Final = _core("Node", "no", namespaced=False)
GPU_NODE: Final = _ours(names.GPU_NODE_KIND, "gn")
GPU_SHARE: Final = _ours(names.GPU_SHARE_KIND, "gs")
CRD: Final = Kind(
    api_version="apiextensions.k8s.io/v1",
    name="CustomResourceDefinition",
    plural="customresourcedefinitions",
    namespaced=False,
    short=("crd", "crds"),
)
BUILT_IN: Final = (
    POD,
    NODE,
    GPU_NODE,
    GPU_SHARE,
    CRD,
    _core("Namespace", "ns", namespaced=False),
    _core("Event", "ev"),
    _core("ConfigMap", "cm"),
    _core("Secret"),
    *(
        Kind(
            api_version="admissionregistration.k8s.io/v1",
            name=name,
            plural=plural,
            namespaced=False,
        )
        for name, plural in (
            ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
            ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
            ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
            ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
        )
    ),
)


class UnknownKindError(LookupError):
    """No kind has that name, here."""


def kind_of(body: Json, definitions: Iterable[Json] = ()) -> Kind:
    """Return the kind of a manifest.

    Args:
        body: the object.
        definitions: the cluster's custom resource definitions.

    Raises:
        UnknownKindError: where it is neither built in nor defined.
    """
    for kind in (*BUILT_IN, *_defined(definitions)):
        if (kind.api_version, kind.name) == (body["apiVersion"], body["kind"]):
            return kind
    raise UnknownKindError(
        f"the cluster serves no {body['kind']} of {body['apiVersion']}: is its definition applied?"
    )


def kind_named(text: str, definitions: Iterable[Json] = ()) -> Kind:
    """Return the kind that a person means: ``pods``, ``pod``, ``po``, ``Pod``.

    Raises:
        UnknownKindError: where there is none.
    """
    wanted = text.lower()
    known = (*BUILT_IN, *_defined(definitions))
    for kind in known:
        if wanted in (kind.plural, kind.singular, *kind.short):
            return kind
    plurals = ", ".join(kind.plural for kind in (POD, NODE, GPU_NODE, GPU_SHARE))
    raise UnknownKindError(f'there is no kind "{text}" here; e.g. {plurals}')


def _defined(definitions: Iterable[Json]) -> Iterable[Kind]:
    for definition in definitions:
        spec = definition["spec"]
        for version in spec["versions"]:
            if version.get("served"):
                yield Kind(
                    api_version=f"{spec['group']}/{version['name']}",
                    name=spec["names"]["kind"],
                    plural=spec["names"]["plural"],
                    namespaced=spec["scope"] == "Namespaced",
                    short=tuple(spec["names"].get("shortNames") or ()),
                )
