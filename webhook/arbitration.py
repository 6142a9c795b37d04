# SPDX-License-Identifier: Apache-2.0
"""Arbitration: may this pod go to that node, and to which of its GPUs.

A pure function of the ledger. Whoever asks writes the ledger that a grant comes with by
compare-and-swap, and asks again when that fails or when there was a reason to wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from gpuslice.contract import fits, names, placement
from gpuslice.contract.ledger import Claim, ClaimState, Ledger, PodRef
from gpuslice.contract.placement import Demand, NoRoom, Policy
from gpuslice.contract.pods import Ask

CONFLICT: Final = 409
"""The HTTP status of a bind that is denied: the scheduler tries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The pod shares no GPU: nothing to decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The pod gets these GPUs, once the ledger with its claim is written."""

    ledger: Ledger
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyClaimed:
    """The pod has its claim on this node from an earlier bind."""

    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """The pod stays Pending."""

    reason: str
    """One word for metrics; e.g. ``no-room``."""
    message: str
    code: int = CONFLICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The ledger is about to change: ask again when it has, and deny when it doesn't in time."""

    denial: Deny


Decision = Pass | Grant | AlreadyClaimed | Wait | Deny


def arbitrate(
    ledger: Ledger | None,
    ask: Ask | None,
    *,
    node: names.NodeName,
    pod: PodRef,
    policy: Policy,
    departing: Collection[names.PodUid] = (),
    others: Iterable[Ledger] = (),
) -> Decision:
    """Decide about one bind.

    Args:
        ledger: of the node, None where it has no GPUs of ours.
        ask: what the pod asks for, None where it shares no GPU.
        node: to which it is to be bound.
        pod: which pod.
        policy: which GPU of several with room.
        departing: pods that are known to be gone or going, whatever the ledger says yet.
        others: all ledgers, for the words of a denial: read only then.
    """
    if ask is None:
        return Pass()
    demand = ask.demand
    if ledger is None:
        message = f"node {node} has no GPUs to share, and the pod asks for {demand.share}"
        return Deny(reason="no-gpus", message=message)
    claim = ledger.claim_of(pod.uid)
    if claim is not None:
        if claim.state is not ClaimState.RESERVED:
            return AlreadyClaimed(claim=claim)
        # Written anew, so that neither the first bind nor the agent takes it back meanwhile.
        renewed = ledger.with_bind(pod.uid)
        return Grant(ledger=renewed, claim=renewed.claim_of(pod.uid) or claim)
    return _place(ledger, ask, pod=pod, policy=policy, departing=departing, others=others)


def _place(
    ledger: Ledger,
    ask: Ask,
    *,
    pod: PodRef,
    policy: Policy,
    departing: Collection[names.PodUid],
    others: Iterable[Ledger],
) -> Decision:
    node, demand = ledger.node, ask.demand
    if not ledger.serving:
        message = f"the device plugin of node {node} is not serving at the moment"
        return Wait(denial=Deny(reason="not-serving", message=message))
    gpus = placement.choose(ledger, demand, policy)
    if isinstance(gpus, NoRoom):
        message = _no_room(node, demand, gpus, others)
        denial = Deny(reason="no-room", message=message)
        return Wait(denial=denial) if _room_comes(ledger, demand, policy, departing) else denial
    unlike = placement.unlike_reservation(ledger, demand)
    if unlike is not None:
        message = (
            f"on node {node} pod {unlike.pod} with share {unlike.share} is still to get its "
            f"{unlike.total_slices} slices, and the node couldn't tell it from a share of "
            f"{demand.share}"
        )
        return Wait(denial=Deny(reason="unlike-reservation", message=message))
    claim = placement.claim_on(gpus, demand, pod=pod, container=ask.container, fit=ask.fit)
    return Grant(ledger=ledger.with_claim(claim), claim=claim)


def _room_comes(
    ledger: Ledger, demand: Demand, policy: Policy, departing: Collection[names.PodUid]
) -> bool:
    """Whether there will be room when the pods that are gone or leaving are through."""
    leaving = {
        claim.pod.uid
        for claim in ledger.claims
        if claim.state is ClaimState.LEAVING or claim.pod_gone or claim.pod.uid in departing
    }
    if not leaving:
        return False
    return not isinstance(placement.choose(ledger.without(leaving), demand, policy), NoRoom)


def _no_room(node: names.NodeName, demand: Demand, most: NoRoom, others: Iterable[Ledger]) -> str:
    share = demand.share
    if share.devices == 1:
        problem = f"no single GPU on node {node} has room for a share of {share}"
    else:
        problem = f"node {node} has no {share.devices} GPUs with room for a share of {share}"
    rooms = [fits.more(ledger, demand) for ledger in others if ledger.node != node]
    nodes = sum(room > 0 for room in rooms)
    if nodes:
        elsewhere = f"{sum(rooms)} such fit on {nodes} other node{'' if nodes == 1 else 's'}"
    else:
        elsewhere = "none fits on any other node"
    return f"{problem} (largest free: {most.largest_free}); {elsewhere}"
