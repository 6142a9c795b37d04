# SPDX-License-Identifier: Apache-2.0
"""Which objects of the API server are meant: their paths, and how one object is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from gpuslice.contract import names

Json = dict[str, Any]
"""A JSON object, as it arrived or is to be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind of object, in one version."""

    group: str = ""
    """Empty for the core group; e.g. ``apps``."""
    version: str = "v1"
    plural: str
    """As in paths; e.g. ``pods``."""
    kind: str
    """As in objects; e.g. ``Pod``."""
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The objects' ``apiVersion``; e.g. ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of one object, of a namespace's objects, or of all of them.

        Args:
            namespace: ignored for what is cluster-scoped; empty means all namespaces.
            name: empty for the collection.
            subresource: such as ``status``.
        """
        parts = ["/api" if not self.group else f"/apis/{self.group}", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


def key(name: str, namespace: str = "") -> str:
    """Return what one object is filed under: ``namespace/name``, or the name alone."""
    return f"{namespace}/{name}" if namespace else name


def key_of(thing: Mapping[str, Any]) -> str:
    """Return what an object is filed under."""
    about = thing["metadata"]
    return key(about["name"], about.get("namespace") or "")


def version_of(thing: Mapping[str, Any]) -> int:
    """Return an object's resourceVersion as a number, 0 where it has none.

    Kubernetes calls it opaque, but all its storage numbers changes, and from 1.35 on promises that
    they can be compared.

    Source: kubernetes.io, API concepts, resource versions.
    """
    text = (thing.get("metadata") or {}).get("resourceVersion") or ""
    return int(text) if text.isascii() and text.isdecimal() else 0


PODS: Final = Resource(plural="pods", kind="Pod")
NODES: Final = Resource(plural="nodes", kind="Node", namespaced=False)
NAMESPACES: Final = Resource(plural="namespaces", kind="Namespace", namespaced=False)
EVENTS: Final = Resource(plural="events", kind="Event")
SECRETS: Final = Resource(plural="secrets", kind="Secret")
SERVICES: Final = Resource(plural="services", kind="Service")
CONFIG_MAPS: Final = Resource(plural="configmaps", kind="ConfigMap")
GPU_NODES: Final = Resource(
    group=names.GROUP,
    version=names.VERSION,
    plural="gpunodes",
    kind=names.GPU_NODE_KIND,
    namespaced=False,
)
GPU_SHARES: Final = Resource(
    group=names.GROUP,
    version=names.VERSION,
    plural="gpushares",
    kind=names.GPU_SHARE_KIND,
    namespaced=False,
)
CUSTOM_RESOURCE_DEFINITIONS: Final = Resource(
    group="apiextensions.k8s.io",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
)
MUTATING_WEBHOOKS: Final = Resource(
    group="admissionregistration.k8s.io",
    plural="mutatingwebhookconfigurations",
    kind="MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS: Final = Resource(
    group="admissionregistration.k8s.io",
    plural="validatingwebhookconfigurations",
    kind="ValidatingWebhookConfiguration",
    namespaced=False,
)
ADMISSION_POLICIES: Final = Resource(
    group="admissionregistration.k8s.io",
    plural="validatingadmissionpolicies",
    kind="ValidatingAdmissionPolicy",
    namespaced=False,
)
ADMISSION_POLICY_BINDINGS: Final = Resource(
    group="admissionregistration.k8s.io",
    plural="validatingadmissionpolicybindings",
    kind="ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
