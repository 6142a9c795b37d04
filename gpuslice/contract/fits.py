# SPDX-License-Identifier: Apache-2.0
"""Fits: how many claims of a share a node has and could still take, published as a resource.

They let the stock scheduler see what its sums can't: whether one GPU has room for a share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuslice.contract.ledger import Ledger
from gpuslice.contract.names import ResourceName
from gpuslice.contract.placement import Demand, room
from gpuslice.contract.shares import Share


def most_together(rooms: Sequence[int], devices: int) -> int:
    """Return how many claims of `devices` distinct GPUs each fit GPUs with these rooms.

    That is the largest t with ``sum(min(room, t)) >= devices * t``: each GPU serves a claim at
    most once, so of t claims it can serve at most t.
    """
    if devices == 1:
        return sum(rooms)
    low, high = 0, sum(rooms) // devices
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(each, middle) for each in rooms) >= devices * middle:
            low = middle
        else:
            high = middle - 1
    return low


def more(ledger: Ledger, demand: Demand) -> int:
    """Return how many more claims of a demand the node's GPUs can hold, each whole.

    None while the node is not serving: kubelet would fail a pod that it admits now.
    """
    if not ledger.serving:
        return 0
    return most_together([room(ledger, gpu, demand) for gpu in ledger.gpus], demand.share.devices)


def claimed(ledger: Ledger, share: Share) -> int:
    """Return how many claims have a pod that asks for the fit of `share`."""
    return sum(claim.fit == share and not claim.pod_gone for claim in ledger.claims)


def fits(ledger: Ledger, demands: Iterable[Demand]) -> dict[ResourceName, int]:
    """Return the value of each demand's fit on a node.

    It is never below the number of pods bound to the node that ask for it, so that kubelet, which
    checks it again when it restarts, never refuses a running pod.
    """
    return {
        demand.share.fit_resource: claimed(ledger, demand.share) + more(ledger, demand)
        for demand in sorted(demands, key=lambda each: str(each.share))
    }


def partial_room(ledger: Ledger) -> int:
    """Return the most free slices on an open GPU that is already in use, 0 if there is none."""
    return max(
        (ledger.free_slices(gpu) for gpu in ledger.gpus if gpu.open and not ledger.is_empty(gpu)),
        default=0,
    )


def empty_gpus(ledger: Ledger) -> int:
    """Return how many open GPUs have no claim."""
    return sum(gpu.open and ledger.is_empty(gpu) for gpu in ledger.gpus)
