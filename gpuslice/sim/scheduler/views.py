# SPDX-License-Identifier: Apache-2.0
"""Pods and nodes as the scheduler sees them: read once, when they change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuslice.sim.scheduler.amounts import Amounts, amounts, requests_of, scored_requests_of

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that pods can be placed on."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Json, ...]
    is_cordoned: bool
    allocatable: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod, waiting or placed."""

    key: str
    """namespace/name"""
    uid: str
    priority: int
    requests: Amounts
    scored_requests: Amounts
    node_selector: Mapping[str, str]
    required_terms: tuple[Json, ...] | None
    """One of them must match; None where there is no such demand."""
    preferred_terms: tuple[Json, ...]
    tolerations: tuple[Json, ...]
    content: Json
    """The object as it arrived."""


def node_of(content: Json) -> Node:
    """Read a Node object."""
    spec, status = content.get("spec") or {}, content.get("status") or {}
    about = content["metadata"]
    return Node(
        name=about["name"],
        labels=about.get("labels") or {},
        taints=tuple(spec.get("taints") or ()),
        is_cordoned=bool(spec.get("unschedulable")),
        allocatable=amounts(status.get("allocatable")),
    )


def pod_of(content: Json) -> Pod:
    """Read a Pod object."""
    spec, about = content.get("spec") or {}, content["metadata"]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution")
    return Pod(
        key=f"{about['namespace']}/{about['name']}",
        uid=about["uid"],
        priority=spec.get("priority") or 0,
        requests=requests_of(content),
        scored_requests=scored_requests_of(content),
        node_selector=spec.get("nodeSelector") or {},
        required_terms=tuple(required.get("nodeSelectorTerms") or ()) if required else None,
        preferred_terms=tuple(preferred or ()),
        tolerations=tuple(spec.get("tolerations") or ()),
        content=content,
    )


def assigned_to(content: Json) -> str:
    """Return the node that a pod takes room on, empty where it takes none."""
    if (content.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
        return ""
    return str((content.get("spec") or {}).get("nodeName") or "")


def is_waiting_for(content: Json, scheduler: str) -> bool:
    """Whether a pod is this scheduler's to place, now."""
    spec, about = content.get("spec") or {}, content["metadata"]
    return (
        not spec.get("nodeName")
        and not spec.get("schedulingGates")
        and not about.get("deletionTimestamp")
        and (spec.get("schedulerName") or "default-scheduler") == scheduler
        and (content.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
    )
