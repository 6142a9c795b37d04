# SPDX-License-Identifier: Apache-2.0
"""Which of the nodes that take a pod is best: free CPU and memory, and preferences.

Nothing here knows of GPUs. Of the stock scheduler's scores those are left out that are equal for
all nodes of the embedded cluster (images, topology spread, pod affinity) or nearly so (balance).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuslice.sim.scheduler import affinity, taints
from gpuslice.sim.scheduler.accounts import Accounts
from gpuslice.sim.scheduler.amounts import CPU, MEMORY, Amounts
from gpuslice.sim.scheduler.views import Node, Pod

BEST: Final = 100
# Source: Kubernetes pkg/scheduler/apis/config/v1/default_plugins.go.
TAINTS_WEIGHT: Final = 3
AFFINITY_WEIGHT: Final = 2
RESOURCES_WEIGHT: Final = 1


def scores(pod: Pod, nodes: Sequence[Node], accounts: Accounts) -> list[int]:
    """Return a score for each node; more is better."""
    preferences = _scaled([affinity.preference(pod, node) for node in nodes])
    unwelcome = _scaled([taints.unwelcome(pod, node) for node in nodes])
    return [
        TAINTS_WEIGHT * (BEST - away)
        + AFFINITY_WEIGHT * preferred
        + RESOURCES_WEIGHT * least_allocated(pod, node, accounts.scored(node.name))
        for node, preferred, away in zip(nodes, preferences, unwelcome, strict=True)
    ]


def least_allocated(pod: Pod, node: Node, used: Amounts) -> int:
    """Return how much CPU and memory would stay free, on average, in percent."""
    free = []
    for name in (CPU, MEMORY):
        allocatable = node.allocatable.get(name, 0)
        if allocatable > 0:
            taken = used.get(name, 0) + pod.scored_requests[name]
            free.append(max(0, allocatable - taken) * BEST // allocatable)
    return sum(free) // len(free) if free else 0


def _scaled(values: list[int]) -> list[int]:
    most = max(values, default=0)
    return [value * BEST // most for value in values] if most > 0 else values
