# SPDX-License-Identifier: Apache-2.0
"""Reading pods: the JSON objects as the API server sends them, never typed and never changed.

Any field may be absent or null. Both halves read pods here, so that they agree on what a pod
asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuslice.contract import names, quantity, shares
from gpuslice.contract.ledger import PodRef
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import Share

Json = Mapping[str, Any]
"""A JSON object as it arrived."""


def meta_of(pod: Json) -> Json:
    """Return an object's metadata, empty where it has none."""
    return pod.get("metadata") or {}


def annotations_of(pod: Json) -> Mapping[str, str]:
    """Return an object's annotations."""
    return meta_of(pod).get("annotations") or {}


def labels_of(pod: Json) -> Mapping[str, str]:
    """Return an object's labels."""
    return meta_of(pod).get("labels") or {}


def spec_of(pod: Json) -> Json:
    """Return an object's spec."""
    return pod.get("spec") or {}


def ref(pod: Json) -> PodRef:
    """Return which pod it is."""
    about = meta_of(pod)
    return PodRef(
        namespace=about.get("namespace") or "default",
        name=about.get("name") or f"{about.get('generateName') or ''}*",
        uid=names.PodUid(about.get("uid") or ""),
    )


def node_name(pod: Json) -> names.NodeName | None:
    """Return the node it is bound to, None while it is on none."""
    name = spec_of(pod).get("nodeName")
    return names.NodeName(name) if name else None


def has_ended(pod: Json) -> bool:
    """Whether its phase is final."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_leaving(pod: Json) -> bool:
    """Whether it has ended or is being deleted."""
    return has_ended(pod) or bool(meta_of(pod).get("deletionTimestamp"))


def containers(pod: Json) -> Iterator[Json]:
    """Yield its init containers, then its regular ones: the order in which kubelet admits them."""
    for group in ("initContainers", "containers"):
        yield from (each for each in spec_of(pod).get(group) or () if each)


def resources(container: Json, kind: str) -> Mapping[str, Any]:
    """Return a container's `limits` or `requests`."""
    return (container.get("resources") or {}).get(kind) or {}


def asked_of(container: Json, resource: str) -> int:
    """Return how much of an extended resource a container asks for, by its limit or its request.

    0 where it asks for none, or for what is no whole number: the API server refuses that.
    """
    for kind in ("limits", "requests"):
        value = resources(container, kind).get(resource)
        if value is not None:
            try:
                return quantity.parse_count(str(value))
            except quantity.QuantityError:
                return 0
    return 0


def share(pod: Json) -> Share | None:
    """Return the share that admission labelled the pod with, None where it has none."""
    text = labels_of(pod).get(names.SHARE_LABEL)
    try:
        return shares.parse_share(text) if isinstance(text, str) else None
    except shares.ShareError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What an admitted pod asks of a node."""

    container: str
    demand: Demand
    fit: Share
    """The share whose fit it requests: its own, or a larger one beyond the cap of shares."""


def ask(pod: Json, slice_resource: str) -> Ask | None:
    """Return what an admitted pod asks of a node, None where it is no sharing pod.

    A pod is a sharing pod if it has our label and one of its containers asks for slices. Its k is
    what it was admitted with, whatever the rule would give today.
    """
    labelled = share(pod)
    if labelled is None:
        return None
    for container in containers(pod):
        total = asked_of(container, slice_resource)
        if total > 0:
            limits = resources(container, "limits")
            fit = next(filter(None, map(shares.share_of_fit, sorted(limits))), labelled)
            slices = max(1, total // labelled.devices)
            demand = Demand(share=labelled, slices=slices)
            return Ask(container=str(container.get("name")), demand=demand, fit=fit)
    return None
