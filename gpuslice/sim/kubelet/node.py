# SPDX-License-Identifier: Apache-2.0
"""kubelet's Node object: what it creates, and what it writes into its status. Pure.

Source: Kubernetes v1.36, pkg/kubelet: nodestatus/setters.go (MachineInfo), kubelet_node_status.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuslice.contract.pods import Json
from gpuslice.sim.kubelet.registration import is_extended_resource

DEFAULT_CAPACITY: Final[Mapping[str, str]] = {
    "cpu": "16",
    "memory": "64Gi",
    "ephemeral-storage": "100Gi",
    "pods": "110",
}

Counts = Mapping[str, tuple[int, int]]
"""Capacity and allocatable by resource, of the resources that have a plugin."""


def new_node(name: str, labels: Mapping[str, str], capacity: Mapping[str, str]) -> dict[str, Any]:
    """Return the Node that kubelet registers."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **labels,
            },
        },
        "spec": {},
        "status": {
            "capacity": dict(capacity),
            "allocatable": dict(capacity),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0-gpuslice", "operatingSystem": "linux"},
        },
    }


def reset_patch(node: Json) -> dict[str, Any]:
    """Return the patch with which a kubelet without checkpoint zeroes all extended resources.

    Empty where there is nothing to zero.
    """
    status = node.get("status") or {}
    zeroed = {
        key: "0"
        for key, value in (status.get("capacity") or {}).items()
        if is_extended_resource(key) and str(value) != "0"
    }
    return {"status": {"capacity": zeroed, "allocatable": zeroed}} if zeroed else {}


def status_patch(
    node: Json, *, own: Mapping[str, str], counts: Counts, given_up: Iterable[str]
) -> dict[str, Any]:
    """Return the merge patch that brings a Node's status up to date, empty where it is.

    Keys that kubelet doesn't know stay in capacity, and allocatable takes their value from there:
    a client can't keep the two different. Extended resources that are only in allocatable go.

    Args:
        node: the Node as the API server has it.
        own: the machine's own capacity.
        counts: the plugins' devices.
        given_up: resources whose plugin has been away for too long: 0, for ever.
    """
    status = node.get("status") or {}
    had_capacity = dict(status.get("capacity") or {})
    had_allocatable = dict(status.get("allocatable") or {})
    capacity = {
        **had_capacity,
        **own,
        **{resource: str(most) for resource, (most, _) in counts.items()},
        **dict.fromkeys(given_up, "0"),
    }
    allocatable = {
        **{
            key: value
            for key, value in had_allocatable.items()
            if key in capacity or not is_extended_resource(key)
        },
        **capacity,
        **{resource: str(now) for resource, (_, now) in counts.items()},
    }
    patch: dict[str, Any] = {}
    changed = {key: value for key, value in capacity.items() if had_capacity.get(key) != value}
    if changed:
        patch["capacity"] = changed
    changed_allocatable: dict[str, str | None] = {
        key: value for key, value in allocatable.items() if had_allocatable.get(key) != value
    }
    changed_allocatable |= dict.fromkeys(had_allocatable.keys() - allocatable.keys())
    if changed_allocatable:
        patch["allocatable"] = changed_allocatable
    ready = [each for each in status.get("conditions") or () if each.get("type") == "Ready"]
    if [each.get("status") for each in ready] != ["True"]:
        patch["conditions"] = [
            *(each for each in status.get("conditions") or () if each.get("type") != "Ready"),
            {"type": "Ready", "status": "True", "reason": "KubeletReady"},
        ]
    return {"status": patch} if patch else {}
