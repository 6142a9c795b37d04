# SPDX-License-Identifier: Apache-2.0
"""What one look at a cluster found: objects as they arrived, and what couldn't be read. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from gpuslice.contract import gpunode, pods
from gpuslice.contract.ledger import Ledger
from gpuslice.contract.placement import Demand
from gpuslice.runtime.settings import Settings

Json = Mapping[str, Any]
Objects = tuple[Json, ...]

WEBHOOK_NAMESPACE: Final = "gpuslice"
NODES_NAMESPACE: Final = "gpuslice-nodes"
"""Where the manifests put the halves, and so what commands in fixes name while nothing is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """The settings of one namespace's ConfigMap."""

    namespace: str
    settings: Settings | None
    error: str = ""
    """Why they can't be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How the API server answered a dry run of a pod that asks for a share."""

    pod: Json | None = None
    """As it would be stored."""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One look."""

    now: datetime
    version: str = ""
    """The API server's; e.g. ``v1.36.2``."""
    definitions: Objects = ()
    mutating: Objects = ()
    validating: Objects = ()
    policies: Objects = ()
    policy_bindings: Objects = ()
    deployments: Objects = ()
    """The webhook's."""
    daemon_sets: Objects = ()
    """The device plugin's."""
    agents: Objects = ()
    """The device plugin's pods."""
    secrets: Objects = ()
    """That hold the webhook's certificate."""
    settings_files: tuple[SettingsFile, ...] = ()
    nodes: Objects = ()
    gpu_nodes: Objects = ()
    gpu_shares: Objects = ()
    pods: Objects = ()
    """Those with our label."""
    trial: Trial | None = None
    """None where it wasn't tried."""
    unreadable: tuple[tuple[str, str], ...] = field(default=())
    """What couldn't be read, and why: its checks say nothing."""

    @cached_property
    def settings(self) -> Settings:
        """The webhook's settings, else the device plugin's, else the defaults."""
        known = [each.settings for each in self.settings_files if each.settings is not None]
        return known[0] if known else Settings()

    @cached_property
    def ledgers(self) -> dict[str, Ledger]:
        """Each node's ledger."""
        return {str(pods.meta_of(each)["name"]): gpunode.ledger_of(each) for each in self.gpu_nodes}

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        """The shares in use."""
        return tuple(map(gpunode.demand_of, self.gpu_shares))

    def is_unreadable(self, what: str) -> bool:
        """Whether a kind of object couldn't be read."""
        return any(kind == what for kind, _ in self.unreadable)

    def gpu_node_names(self) -> Iterator[str]:
        """Yield the names of the nodes on which a device plugin should run.

        Those whose labels the DaemonSet selects, and those that have a `GpuNode`.
        """
        for node in self.nodes:
            name = str(pods.meta_of(node)["name"])
            if name in self.ledgers or any(_selects(each, node) for each in self.daemon_sets):
                yield name

    def node(self, name: str) -> Json | None:
        """Return a node."""
        return next((each for each in self.nodes if pods.meta_of(each)["name"] == name), None)


def namespace_of(objects: Objects, otherwise: str) -> str:
    """Return the namespace of the first of these objects."""
    return str(pods.meta_of(objects[0]).get("namespace")) if objects else otherwise


def _selects(daemon_set: Json, node: Json) -> bool:
    """Whether a DaemonSet's template may run on a node, as far as labels say it."""
    spec = pods.spec_of(pods.spec_of(daemon_set).get("template") or {})
    labels = pods.labels_of(node)
    plain = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in plain.items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms")
    if terms is None:
        return True
    return any(
        all(_matches(each, labels) for each in term.get("matchExpressions") or ()) for term in terms
    )


def _matches(expression: Json, labels: Mapping[str, str]) -> bool:
    value = labels.get(expression["key"])
    listed = expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in listed
        case "NotIn":
            return value not in listed
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False
