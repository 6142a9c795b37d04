# SPDX-License-Identifier: Apache-2.0
"""Which tokens a container gets, and whether what kubelet chose can be right.

kubelet asks without naming the pod. What tells the pods apart is the number of tokens: the
arbiter sees to it that waiting reservations of one number are of one share.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deviceplugin.spreads import Spread, named, shape_from, spread_of, spread_of_tokens
from gpuslice.contract import placement
from gpuslice.contract.ledger import Claim, ClaimState, Gpu, Ledger, LedgerError, Part, PodRef
from gpuslice.contract.names import GpuUuid, PodUid
from gpuslice.contract.placement import Demand, NoRoom, Policy
from gpuslice.contract.shares import Share
from gpuslice.contract.tokens import SEPARATOR

_NOBODY: Final = "unclaimed"
"""Namespace of the stand-ins for pods whose tokens are handed out, but not yet read back."""


class Reason(enum.StrEnum):
    """Why kubelet's choice is refused: a metric's label."""

    EMPTY = "empty"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"
    NO_CLAIM = "no-claim"
    AMBIGUOUS = "ambiguous"
    NO_ROOM = "no-room"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """kubelet's tokens can't be right for any pod that waits: it would fail the pod."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Tokens handed out by one Allocate, until it is read back which pod has them."""

    tokens: frozenset[str]
    share: Share
    shape: tuple[Part, ...]
    claimed: bool
    """Whether it serves a claim; else a bound pod that has none."""
    since_seconds: float = 0
    """When it was given, on the plugin's own clock."""

    @property
    def spread(self) -> Spread:
        """Its tokens per GPU."""
        return spread_of(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that an answer to kubelet rests on: held in memory, replaced as a whole."""

    ledger: Ledger
    tokens: Mapping[PodUid, frozenset[str]] = dataclasses.field(default_factory=dict)
    """What kubelet has given to living pods, as last read."""
    unclaimed: tuple[Demand, ...] = ()
    """What bound pods ask for that have neither claim nor tokens."""
    in_flight: tuple[Grant, ...] = ()
    """Oldest first."""


def waiting_claims(view: View, size: int) -> Iterator[Claim]:
    """Yield the claims of `size` tokens whose tokens kubelet has not handed out yet.

    Reserved ones first. Then held ones of whose tokens kubelet knows nothing: it lost its
    checkpoint, and asks again. Each grant in flight stands for one claim of its shape.
    """
    served = Counter((each.share, each.spread) for each in view.in_flight if each.claimed)
    for state in (ClaimState.RESERVED, ClaimState.HELD):
        for claim in view.ledger.claims:
            if claim.state is not state or claim.total_slices != size:
                continue
            if claim.pod.uid in view.tokens or claim.pod_gone:
                continue
            kind = (claim.share, spread_of(claim.shape))
            if served[kind]:
                served[kind] -= 1
            else:
                yield claim


def _with_unclaimed_grants(view: View) -> Ledger:
    """Return the ledger with a stand-in claim for each grant in flight that serves none."""
    ledger = view.ledger
    for number, grant in enumerate(view.in_flight):
        if not grant.claimed:
            ledger = ledger.with_claim(
                Claim(
                    pod=PodRef(namespace=_NOBODY, name=str(number), uid=PodUid(f"?{number}")),
                    container="",
                    share=grant.share,
                    fit=grant.share,
                    state=ClaimState.HELD,
                    shape=grant.shape,
                )
            )
    return ledger


# --- GetPreferredAllocation


def prefer(
    view: View, *, available: Collection[str], must_include: Collection[str], size: int
) -> tuple[str, ...]:
    """Return the tokens that kubelet should give to a container that asks for `size`.

    Args:
        view: what is known.
        available: kubelet's free tokens, any order; those in `must_include` may be among them.
        must_include: tokens the container has already, of an init container.
        size: how many in all.

    Returns:
        Exactly `size` distinct tokens, must_include first, if there are that many; kubelet fills
        a shortfall at random, perhaps over several GPUs. Where a claim of that size waits, they
        are all on its GPUs. Tokens that a living claim's pod has are taken last: kubelet knows
        better who is dead.
    """
    offer = _Offer(available, must_include, frozenset().union(*view.tokens.values()))
    for wanted in _wanted(view, size, offer):
        picked = offer.pick(wanted)
        if picked is not None:
            return picked
    return offer.any(size)


class _Offer:
    """kubelet's free tokens, by GPU."""

    def __init__(
        self, available: Collection[str], must_include: Collection[str], held: frozenset[str]
    ) -> None:
        self._must = tuple(dict.fromkeys(must_include))
        self._free: dict[str, list[str]] = {}
        for each in set(available).difference(self._must):
            self._free.setdefault(each.rpartition(SEPARATOR)[0], []).append(each)
        self._fixed = Counter(each.rpartition(SEPARATOR)[0] for each in self._must)
        self._held = held

    def room(self, gpu: str) -> int:
        """Return how many tokens of a GPU a container could have at most."""
        return len(self._free.get(gpu, ())) + self._fixed[gpu]

    def pick(self, wanted: Mapping[GpuUuid, int]) -> tuple[str, ...] | None:
        """Return that many tokens of each GPU, None where they can't be had."""
        counts: Mapping[str, int] = {str(gpu): count for gpu, count in wanted.items()}
        if any(fixed > counts.get(gpu, 0) for gpu, fixed in self._fixed.items()):
            return None
        if any(self.room(gpu) < count for gpu, count in counts.items()):
            return None
        picked = list(self._must)
        for gpu, count in counts.items():
            picked += self._best(gpu)[: count - self._fixed[gpu]]
        return tuple(picked)

    def any(self, size: int) -> tuple[str, ...]:
        """Return any tokens, on as few GPUs as it goes: whatever is returned, Allocate decides."""
        picked = list(self._must)
        for gpu in sorted(self._free, key=lambda gpu: (-self.room(gpu), gpu)):
            picked += self._best(gpu)[: max(0, size - len(picked))]
        return tuple(picked[:size])

    def _best(self, gpu: str) -> list[str]:
        tokens = self._free.get(gpu, [])
        return sorted(tokens, key=lambda each: (each in self._held, len(each), each))


def _wanted(view: View, size: int, offer: _Offer) -> Iterator[dict[GpuUuid, int]]:
    """Yield the distributions over GPUs that would do, best first."""
    for claim in waiting_claims(view, size):
        yield {part.gpu: part.slices for part in claim.shape}
    demands = {demand for demand in view.unclaimed if demand.total_slices == size}
    if len(demands) == 1:
        (demand,) = demands
        gpus = placement.choose(_room_of(view), demand, Policy.PACK)
        if not isinstance(gpus, NoRoom):
            yield {gpu.uuid: demand.slices for gpu in gpus}
    for gpu in sorted(view.ledger.gpus, key=lambda gpu: (offer.room(gpu.uuid), gpu.index)):
        if gpu.open:
            yield {gpu.uuid: size}


def _room_of(view: View) -> Ledger:
    try:
        return _with_unclaimed_grants(view)
    except LedgerError:
        # Only a preference: Allocate, which checks, says no.
        return view.ledger


# --- Allocate


def check(view: View, ids: Sequence[str]) -> Grant | Refusal:
    """Return the grant of these tokens, or why no pod that waits can have them.

    Where the arbiter has made a claim, its GPUs decide. A bound pod without one gets what has
    room, in MiB as well as in tokens.
    """
    fault = _fault(view.ledger, ids)
    if fault is not None:
        return fault
    spread, size = spread_of_tokens(ids), len(ids)
    claims = list(waiting_claims(view, size))
    demands = {demand for demand in view.unclaimed if demand.total_slices == size}
    shares = {claim.share for claim in claims} | {demand.share for demand in demands}
    if demands and len(shares) > 1:
        return Refusal(
            reason=Reason.AMBIGUOUS,
            message=f"pods of {size} slices and different shares "
            f"({', '.join(sorted(map(str, shares)))}) wait on this node, and at least one was "
            "bound without the arbiter: which of them this is can't be told",
        )
    for claim in claims:
        if spread_of(claim.shape) == spread:
            return Grant(tokens=frozenset(ids), share=claim.share, shape=claim.shape, claimed=True)
    again = _held_already(view, ids, spread)
    if again is not None:
        return Grant(tokens=frozenset(ids), share=again.share, shape=again.shape, claimed=True)
    if not demands:
        return Refusal(reason=Reason.NO_CLAIM, message=_no_claim(claims, spread, size))
    (demand,) = demands
    return _unclaimed_grant(view, demand, spread, ids)


def _fault(ledger: Ledger, ids: Sequence[str]) -> Refusal | None:
    """Return what is wrong with the ids themselves."""
    if not ids:
        return Refusal(reason=Reason.EMPTY, message="a container asks for no token at all")
    twice = sorted(each for each, count in Counter(ids).items() if count > 1)
    if twice:
        return Refusal(reason=Reason.DUPLICATE, message=f"{twice[0]} is named twice")
    slices = {str(gpu.uuid): gpu.slices for gpu in ledger.gpus}
    for each in sorted(ids):
        gpu, _, number = each.rpartition(SEPARATOR)
        if not (number.isascii() and number.isdigit() and str(int(number)) == number):
            return Refusal(reason=Reason.UNKNOWN, message=f"{each!r} is no token of ours")
        if int(number) >= slices.get(gpu, 0):
            return Refusal(reason=Reason.UNKNOWN, message=f"this node has no token {each!r}")
    return None


def _held_already(view: View, ids: Sequence[str], spread: Spread) -> Claim | None:
    """Return the claim of the pod that has some of these tokens already, if they all are its.

    kubelet hands an init container's tokens on to the pod's other containers, and asks again.
    Source: k8s.io/kubernetes pkg/kubelet/cm/devicemanager/manager.go, reusableDevices.
    """
    asked = frozenset(ids)
    owners = [uid for uid, tokens in view.tokens.items() if tokens & asked]
    claim = view.ledger.claim_of(owners[0]) if len(owners) == 1 else None
    if claim is None or claim.pod_gone or spread_of(claim.shape) != spread:
        return None
    return claim


def _no_claim(claims: Sequence[Claim], spread: Spread, size: int) -> str:
    asked = named(spread)
    if not claims:
        return f"no pod on this node waits for {size} slices; asked: {asked}"
    waiting = "; ".join(sorted({named(spread_of(claim.shape)) for claim in claims}))
    return f"no pod that waits has its claim on {asked}; claims of {size} slices are on: {waiting}"


def _unclaimed_grant(
    view: View, demand: Demand, spread: Spread, ids: Sequence[str]
) -> Grant | Refusal:
    if spread != tuple((gpu, demand.slices) for gpu, _ in spread) or (
        len(spread) != demand.share.devices
    ):
        return Refusal(
            reason=Reason.NO_CLAIM,
            message=f"a share {demand.share} is {demand.slices} slices on each of "
            f"{demand.share.devices} GPUs, not {named(spread)}",
        )
    grant = Grant(
        tokens=frozenset(ids),
        share=demand.share,
        shape=shape_from(view.ledger, demand.share, spread),
        claimed=False,
    )
    try:
        _with_unclaimed_grants(
            dataclasses.replace(view, in_flight=(*view.in_flight, grant)),
        )
    except LedgerError as error:
        return Refusal(
            reason=Reason.NO_ROOM,
            message=f"a pod of share {demand.share} was bound without the arbiter: {error}",
        )
    return grant


def settle(view: View, *, before_seconds: float) -> View:
    """Drop the grants in flight that are over: read back, or whose pod is gone.

    There can't be more of a kind in flight than claims that wait: the oldest go. A grant without
    a claim goes only if it was given before `before_seconds`: its pod may be one that this view
    doesn't know yet.
    """
    given = list(view.tokens.values())
    waiting = Counter(
        (claim.share, spread_of(claim.shape))
        for claim in view.ledger.claims
        if claim.pod.uid not in view.tokens and not claim.pod_gone
    )
    kept: list[Grant] = []
    for grant in reversed(view.in_flight):
        if any(grant.tokens <= tokens for tokens in given):
            continue
        if grant.claimed:
            kind = (grant.share, grant.spread)
            waiting[kind] -= 1
            if waiting[kind] < 0:
                continue
        elif grant.since_seconds < before_seconds:
            continue
        kept.append(grant)
    in_flight = tuple(reversed(kept))
    return view if in_flight == view.in_flight else dataclasses.replace(view, in_flight=in_flight)


def gpus_of(grant: Grant, ledger: Ledger) -> tuple[Gpu, ...]:
    """Return the GPUs of a grant, in the order of its shape."""
    return tuple(ledger.gpu(part.gpu) for part in grant.shape)
