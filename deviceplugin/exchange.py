# SPDX-License-Identifier: Apache-2.0
"""Putting claims where the tokens are, after kubelet served equal pods in its own order.

Seen on a busy cluster: 4 of 450 pods got each other's tokens, 2 of them over different GPUs.
Left alone, the ledger later frees the wrong GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deviceplugin.spreads import Spread, shape_from, spread_of, spread_of_tokens
from gpuslice.contract.ledger import Claim, ClaimState, Ledger, LedgerError
from gpuslice.contract.names import PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """Two pods have each other's GPUs now."""

    claim: Claim
    other: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A claim went to the GPUs on which kubelet gave its pod tokens."""

    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A pod has tokens where the ledger has no room for its claim: a promise is broken."""

    claim: Claim
    reason: str


Repair = Exchanged | Moved | Stuck


def realign(
    ledger: Ledger, tokens: Mapping[PodUid, frozenset[str]]
) -> tuple[Ledger, tuple[Repair, ...]]:
    """Return the ledger in which each claim is on the GPUs of its pod's tokens.

    Equal claims change places, over as many pods as it takes: each exchange settles at least one
    pod, so a chain ends. What no equal claim stands for is moved, if there is room.
    """
    spreads = {uid: spread_of_tokens(ids) for uid, ids in tokens.items()}
    repairs: list[Repair] = []
    for uid in [claim.pod.uid for claim in ledger.claims]:
        claim = _claim(ledger, uid)
        if not _misplaced(claim, spreads):
            continue
        other = next(_partners(ledger, claim, spreads), None)
        if other is not None:
            ledger = ledger.exchanged(uid, other.pod.uid)
            repairs.append(
                Exchanged(claim=_claim(ledger, uid), other=_claim(ledger, other.pod.uid))
            )
    ledger, moves = _move(ledger, spreads)
    return ledger, (*repairs, *moves)


def _claim(ledger: Ledger, uid: PodUid) -> Claim:
    claim = ledger.claim_of(uid)
    assert claim is not None
    return claim


def _misplaced(claim: Claim, spreads: Mapping[PodUid, Spread]) -> bool:
    spread = spreads.get(claim.pod.uid)
    return bool(spread) and spread != spread_of(claim.shape)


def _partners(ledger: Ledger, claim: Claim, spreads: Mapping[PodUid, Spread]) -> Iterator[Claim]:
    """Yield the equal claims that stand where this pod's tokens are; misplaced ones first."""
    wanted = spreads[claim.pod.uid]
    alike = [
        other
        for other in ledger.claims
        if other.pod.uid != claim.pod.uid
        and other.share == claim.share
        and other.total_slices == claim.total_slices
        and spread_of(other.shape) == wanted
    ]
    yield from (other for other in alike if _misplaced(other, spreads))
    # Not with one that had tokens once: its processes may live on where its claim is.
    yield from (
        other
        for other in alike
        if not spreads.get(other.pod.uid) and other.state is ClaimState.RESERVED
    )


def _move(ledger: Ledger, spreads: Mapping[PodUid, Spread]) -> tuple[Ledger, tuple[Repair, ...]]:
    """Move what is still misplaced; all at once, since one may go where another was."""
    misplaced = [claim for claim in ledger.claims if _misplaced(claim, spreads)]
    if not misplaced:
        return ledger, ()
    moved = ledger.without(claim.pod.uid for claim in misplaced)
    repairs: list[Repair] = []
    left: list[tuple[Claim, str]] = []
    for claim in misplaced:
        try:
            shape = shape_from(ledger, claim.share, spreads[claim.pod.uid])
            there = dataclasses.replace(claim, shape=shape)
            moved = moved.with_claim(there)
            repairs.append(Moved(claim=there))
        except LedgerError as error:
            left.append((claim, str(error)))
    for claim, reason in left:
        try:
            moved = moved.with_claim(claim)
        except LedgerError:
            # Its old place is taken too: better no move at all than a claim lost.
            return ledger, tuple(
                Stuck(claim=each, reason="its place is needed by another") for each in misplaced
            )
        repairs.append(Stuck(claim=claim, reason=reason))
    return _in_order_of(ledger, moved), tuple(repairs)


def _in_order_of(before: Ledger, after: Ledger) -> Ledger:
    """Return the ledger of `after` with its claims, the same pods', in the order of `before`."""
    claims = tuple(_claim(after, claim.pod.uid) for claim in before.claims)
    return before if claims == before.claims else dataclasses.replace(after, claims=claims)
