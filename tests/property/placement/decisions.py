# SPDX-License-Identifier: Apache-2.0
"""The decisions under test, each by argument: the product's, or one with a mistake in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from deviceplugin import allocation, publication
from deviceplugin.allocation import View
from deviceplugin.reconciliation import Outcome, Sight, reconcile
from gpuslice.contract.ledger import Ledger
from gpuslice.contract.names import PodUid, ResourceName
from gpuslice.contract.placement import Demand
from tests.property.placement.apiserver import Json


def fits_of(
    ledger: Ledger, demands: Collection[Demand], pods: Collection[Json], resource: str
) -> dict[ResourceName, int]:
    """Return a node's fits, as the product does."""
    return publication.values(ledger, demands, pods, resource)


def prefer(view: View, available: Collection[str], size: int) -> tuple[str, ...]:
    """Return the tokens to prefer, as the product does."""
    return allocation.prefer(view, available=available, must_include=(), size=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What the processes of a history decide with."""

    compares_versions: bool = True
    """Whether the arbiter writes only into the ledger that it has read."""
    waits_for_node: bool = True
    """Whether a bind is answered only when the Node shows the claim."""
    fits: Callable[[Ledger, Collection[Demand], Collection[Json], str], Mapping[ResourceName, int]]
    reconcile: Callable[[Ledger, Sight, str], Outcome]
    prefer: Callable[[View, Collection[str], int], tuple[str, ...]]
    released: Callable[[frozenset[PodUid], frozenset[PodUid]], frozenset[PodUid]]
    """From the pods that kubelet has let go, and those that have ended: whose claims may go."""
    expiry_ahead_seconds: float = 0.0
    """How far the clock of who judges a reservation is ahead of who noted its begin."""
    pod_gone_seconds: float = 10.0
    """How long a force-deleted pod keeps its claim."""


PRODUCT = Decisions(
    fits=fits_of, reconcile=reconcile, prefer=prefer, released=lambda released, _ended: released
)
