# SPDX-License-Identifier: Apache-2.0
"""The kinds that are served: a table of those built in, and those that CRDs add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Resource = tuple[str, str]
"""Group and plural: what objects are stored under, whatever version they are asked in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind in one version, as discovery shows it."""

    group: str = ""
    version: str = "v1"
    kind: str
    plural: str
    namespaced: bool = True
    has_status: bool = False
    """Served with the `status` subresource."""
    subresources: tuple[str, ...] = ()
    """Those besides `status`: `("binding", "eviction")`."""
    short_names: tuple[str, ...] = ()
    is_custom: bool = False
    """Made by a CRD: no unconditional PUT, status writes leave metadata alone."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> Resource:
        return (self.group, self.plural)

    @property
    def qualified(self) -> str:
        """The plural with its group, as messages name it: `pods`, `gpunodes.gpuslice.dev`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Kind(
    kind="Pod",
    plural="pods",
    has_status=True,
    subresources=("binding", "eviction"),
    short_names=("po",),
)
BINDINGS = Kind(kind="Binding", plural="bindings")
NODES = Kind(kind="Node", plural="nodes", namespaced=False, has_status=True, short_names=("no",))
NAMESPACES = Kind(
    kind="Namespace", plural="namespaces", namespaced=False, has_status=True, short_names=("ns",)
)
CRDS = Kind(
    group="apiextensions.k8s.io",
    kind="CustomResourceDefinition",
    plural="customresourcedefinitions",
    namespaced=False,
    has_status=True,
    short_names=("crd", "crds"),
)
_ADMISSION = "admissionregistration.k8s.io"
MUTATING_HOOKS = Kind(
    group=_ADMISSION,
    kind="MutatingWebhookConfiguration",
    plural="mutatingwebhookconfigurations",
    namespaced=False,
)
VALIDATING_HOOKS = Kind(
    group=_ADMISSION,
    kind="ValidatingWebhookConfiguration",
    plural="validatingwebhookconfigurations",
    namespaced=False,
)
POLICIES = Kind(
    group=_ADMISSION,
    kind="ValidatingAdmissionPolicy",
    plural="validatingadmissionpolicies",
    namespaced=False,
    has_status=True,
)
POLICY_BINDINGS = Kind(
    group=_ADMISSION,
    kind="ValidatingAdmissionPolicyBinding",
    plural="validatingadmissionpolicybindings",
    namespaced=False,
)
_RBAC = "rbac.authorization.k8s.io"

BUILT_IN = (
    PODS,
    BINDINGS,
    NODES,
    NAMESPACES,
    Kind(kind="Event", plural="events", short_names=("ev",)),
    Kind(kind="Secret", plural="secrets"),
    Kind(kind="ConfigMap", plural="configmaps", short_names=("cm",)),
    Kind(kind="ServiceAccount", plural="serviceaccounts", short_names=("sa",)),
    Kind(kind="Service", plural="services", has_status=True, short_names=("svc",)),
    Kind(group="apps", kind="Deployment", plural="deployments", has_status=True),
    Kind(group="apps", kind="DaemonSet", plural="daemonsets", has_status=True),
    Kind(group="apps", kind="StatefulSet", plural="statefulsets", has_status=True),
    Kind(group="apps", kind="ReplicaSet", plural="replicasets", has_status=True),
    Kind(group="batch", kind="Job", plural="jobs", has_status=True),
    Kind(group="batch", kind="CronJob", plural="cronjobs", has_status=True),
    Kind(group=_RBAC, kind="Role", plural="roles"),
    Kind(group=_RBAC, kind="RoleBinding", plural="rolebindings"),
    Kind(group=_RBAC, kind="ClusterRole", plural="clusterroles", namespaced=False),
    Kind(group=_RBAC, kind="ClusterRoleBinding", plural="clusterrolebindings", namespaced=False),
    Kind(group="policy", kind="PodDisruptionBudget", plural="poddisruptionbudgets"),
    Kind(group="coordination.k8s.io", kind="Lease", plural="leases"),
    CRDS,
    MUTATING_HOOKS,
    VALIDATING_HOOKS,
    POLICIES,
    POLICY_BINDINGS,
)


def kinds_of(crd: Mapping[str, Any]) -> tuple[Kind, ...]:
    """List the kinds that one CRD object makes served, one per served version."""
    spec = crd["spec"]
    names = spec["names"]
    return tuple(
        Kind(
            group=spec["group"],
            version=version["name"],
            kind=names["kind"],
            plural=names["plural"],
            namespaced=spec.get("scope", "Namespaced") == "Namespaced",
            has_status="status" in (version.get("subresources") or {}),
            short_names=tuple(names.get("shortNames") or ()),
            is_custom=True,
        )
        for version in spec["versions"]
        if version.get("served", True)
    )


class Served:
    """What is served now, as an immutable table that CRD changes replace."""

    def __init__(self, kinds: Iterable[Kind] = BUILT_IN) -> None:
        self._built_in = tuple(kinds)
        self._table = {(k.group, k.version, k.plural): k for k in self._built_in}

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._table.values())

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        return self._table.get((group, version, plural))

    def replace_custom(self, crds: Iterable[Mapping[str, Any]]) -> None:
        custom = [kind for crd in crds for kind in kinds_of(crd)]
        self._table = {(k.group, k.version, k.plural): k for k in (*self._built_in, *custom)}
