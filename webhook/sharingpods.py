# SPDX-License-Identifier: Apache-2.0
"""Pods as the arbiter needs them: who, what they ask for, where they are."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuslice.contract import names, pods
from gpuslice.contract.ledger import PodRef
from gpuslice.contract.placement import Policy
from gpuslice.contract.pods import Ask

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPod:
    """What one pod asks of a node; a cache of many thousands keeps these and no JSON."""

    pod: PodRef
    ask: Ask | None
    """None where the pod shares no GPU, or was not admitted."""
    asks_slices: bool
    """Whether a container asks for slices, admitted or not."""
    node: names.NodeName | None
    """Where it is bound, None where it is not."""
    has_ended: bool
    is_leaving: bool
    """Ended, or being deleted."""
    placement: Policy | None
    """None means the cluster's setting."""


@functools.lru_cache(maxsize=4096)
def _one(ask: Ask) -> Ask:
    """Return the same object for equal asks: thousands of pods have few kinds."""
    return ask


def read(pod: Json, slice_resource: str) -> SharingPod:
    """Return what a pod asks of a node.

    Args:
        pod: as the API server sends it.
        slice_resource: the setting `resourceName`.
    """
    ask = pods.ask(pod, slice_resource)
    placement = pods.annotations_of(pod).get(names.PLACEMENT)
    return SharingPod(
        pod=pods.ref(pod),
        ask=None if ask is None else _one(ask),
        asks_slices=any(pods.asked_of(each, slice_resource) > 0 for each in pods.containers(pod)),
        node=pods.node_name(pod),
        has_ended=pods.has_ended(pod),
        is_leaving=pods.is_leaving(pod),
        placement=Policy(placement) if placement in set(Policy) else None,
    )
