# SPDX-License-Identifier: Apache-2.0
"""Planted mistakes: each changes one decision, and the search must find it.

What a mistake breaks is said beside it; facts of a prototype on the real thing stand behind most.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from deviceplugin.allocation import View
from deviceplugin.reconciliation import Outcome, Sight, reconcile
from gpuslice.contract import pods as reading
from gpuslice.contract.ledger import ClaimState, Ledger
from gpuslice.contract.names import ResourceName
from gpuslice.contract.placement import Demand
from tests.property.placement.apiserver import Json
from tests.property.placement.decisions import PRODUCT, Decisions, fits_of


def _fits_without_reserved(
    ledger: Ledger, demands: Collection[Demand], here: Collection[Json], resource: str
) -> Mapping[ResourceName, int]:
    """Count what is held, and the room beside all claims, but not what is reserved."""
    reserved = {
        claim.pod.uid: claim.fit.fit_resource
        for claim in ledger.claims
        if claim.state is ClaimState.RESERVED
    }
    lacking = Counter(reserved.values())
    others = [pod for pod in here if reading.ref(pod).uid not in reserved]
    exact = fits_of(ledger, demands, others, resource)
    return {name: max(0, value - lacking[name]) for name, value in exact.items()}


def _reconcile_without_exchange(ledger: Ledger, sight: Sight, resource: str) -> Outcome:
    """Leave each claim on the GPUs that the arbiter chose, wherever its pod's tokens are."""
    shapes = {claim.pod.uid: claim.shape for claim in ledger.claims}
    outcome = reconcile(ledger, sight, resource)
    claims = tuple(
        dataclasses.replace(claim, shape=shapes.get(claim.pod.uid, claim.shape))
        for claim in outcome.ledger.claims
    )
    as_it_was = dataclasses.replace(outcome.ledger, claims=claims)
    return dataclasses.replace(outcome, ledger=as_it_was)


def _spread_tokens(_view: View, available: Collection[str], size: int) -> tuple[str, ...]:
    """Take tokens of all GPUs in turn."""
    return tuple(sorted(available, key=lambda each: each.rpartition("::")[::-1])[:size])


MISTAKES: Final[Mapping[str, Decisions]] = {
    # Two arbiters grant one room.
    "no compare-and-swap": dataclasses.replace(PRODUCT, compares_versions=False),
    # kubelet, which adds up fits too, fails a pod that was rightly bound.
    "Reserved left out of the fit": dataclasses.replace(PRODUCT, fits=_fits_without_reserved),
    # The same, for the moments until the Node is patched.
    "a bind answered before the Node shows the claim": dataclasses.replace(
        PRODUCT, waits_for_node=False
    ),
    # The ledger frees the wrong GPU later.
    "claims not exchanged": dataclasses.replace(PRODUCT, reconcile=_reconcile_without_exchange),
    # kubelet still holds the tokens.
    "a claim ended at Succeeded": dataclasses.replace(
        PRODUCT, released=lambda released, ended: released | ended
    ),
    # A reservation ends while its bind is on the way.
    "expiry by another's clock": dataclasses.replace(PRODUCT, expiry_ahead_seconds=300.0),
    # Its processes live on.
    "a claim dropped at force deletion": dataclasses.replace(PRODUCT, pod_gone_seconds=0.0),
    # Nobody's claim is on several GPUs at once.
    "tokens spread over GPUs": dataclasses.replace(PRODUCT, prefer=_spread_tokens),
}
