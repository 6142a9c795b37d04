# SPDX-License-Identifier: Apache-2.0
"""Which tokens a container gets, and whether what kubelet chose can be right.

kubelet asks without naming the pod. What tells the pods apart is the number of tokens: the
arbiter sees to it that waiting reservations of one number are of one share.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    former: frozenset[PodUid] = frozenset()
    """Pods that had some of these tokens before, by what was known: kubelet knows they are dead."""

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
    bound: frozenset[PodUid] = frozenset()
    """The pods that are known to be bound to this node."""
    served: frozenset[PodUid] = frozenset()
    """The pods with claims that were seen to have tokens, be it in the past."""
    unadopted: tuple[Claim, ...] = ()
    """What pods have whose tokens were handed out where the ledger has no room for their claim."""


def waiting_claims(view: View, size: int) -> Iterator[Claim]:
    """Yield the claims of `size` tokens whose tokens kubelet has not handed out yet.

    First those of pods that are bound here, since kubelet asks for no others: Reserved ones, then
    held ones of whose tokens kubelet knows nothing (it lost its checkpoint, and asks again). Last
    reservations of pods that are not known to be bound. Each grant in flight stands for one claim
    of its shape: the last of them, or one whose pod left before its tokens were read back.
    """
    unserved = [
        claim
        for claim in view.ledger.claims
        if claim.total_slices == size
        and claim.pod.uid not in view.tokens
        and (claim.state is ClaimState.HELD or claim.pod.uid not in view.served)
    ]
    unserved.sort(key=lambda claim: (claim.pod.uid not in view.bound, _ORDER[claim.state]))
    leaving = [claim for claim in unserved if claim.state is ClaimState.LEAVING]
    candidates = [claim for claim in unserved if claim.state is not ClaimState.LEAVING]
    grants = Counter((each.share, each.spread) for each in view.in_flight if each.claimed)
    waiting: list[Claim] = []
    left: list[Claim] = []
    served: Counter[Share] = Counter()
    for claim in (*leaving, *reversed(candidates)):
        kind = (claim.share, spread_of(claim.shape))
        if grants[kind]:
            grants[kind] -= 1
            served[claim.share] += claim.state is not ClaimState.LEAVING
        else:
            (left if claim.state is ClaimState.LEAVING else waiting).append(claim)
    # First those that are left whichever claims the grants in flight turn out to be: kubelet comes
    # back with the tokens that it is told now.
    sure = Counter((claim.share, spread_of(claim.shape)) for claim in candidates)
    sure.subtract((each.share, each.spread) for each in view.in_flight if each.claimed)
    unsure: list[Claim] = []
    for claim in reversed(waiting):
        kind = (claim.share, spread_of(claim.shape))
        sure[kind] -= 1
        if sure[kind] >= 0:
            yield claim
        else:
            unsure.append(claim)
    yield from unsure
    # A pod that leaves had an equal pod's place: that one gets its place instead.
    for claim in left:
        if served[claim.share]:
            served[claim.share] -= 1
            yield claim


_ORDER: Final = {ClaimState.RESERVED: 0, ClaimState.HELD: 1, ClaimState.LEAVING: 2}


def knows_asker(view: View, size: int) -> bool:
    """Whether a pod that is known to be bound waits for that many tokens."""
    return any(claim.pod.uid in view.bound for claim in waiting_claims(view, size)) or any(
        demand.total_slices == size for demand in view.unclaimed
    )


def _taken_beside(view: View, gpu: GpuUuid) -> tuple[int, int]:
    """Return the MiB and slices of a GPU that were handed out without a claim in the ledger."""
    parts = [
        part
        for shape in (
            *(grant.shape for grant in view.in_flight if not grant.claimed),
            *(claim.shape for claim in view.unadopted),
        )
        for part in shape
        if part.gpu == gpu
    ]
    return sum(part.memory_mib for part in parts), sum(part.slices for part in parts)


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
    demands = _unclaimed_of(view, size)
    for claim in _askers(view, waiting_claims(view, size), demands):
        yield {part.gpu: part.slices for part in claim.shape}
    if len(demands) == 1:
        (demand,) = demands
        gpus = placement.choose(_room_of(view), demand, Policy.PACK)
        if not isinstance(gpus, NoRoom):
            yield {gpu.uuid: demand.slices for gpu in gpus}
    for gpu in sorted(view.ledger.gpus, key=lambda gpu: (offer.room(gpu.uuid), gpu.index)):
        if gpu.open:
            yield {gpu.uuid: size}


def _unclaimed_of(view: View, size: int) -> set[Demand]:
    """Return what bound pods without a claim ask for, of one number of tokens."""
    return {demand for demand in view.unclaimed if demand.total_slices == size}


def _askers(view: View, claims: Iterable[Claim], demands: set[Demand]) -> Iterator[Claim]:
    """Yield the waiting claims for one of which kubelet may ask now.

    It asks for pods that are bound. Where one without a claim waits, it doesn't ask for another
    that is not known to be bound; of one share they are served in any order.
    """
    shares = {demand.share for demand in demands}
    for claim in claims:
        if not demands or claim.share in shares or claim.pod.uid in view.bound:
            yield claim


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
    claims, demands = list(waiting_claims(view, size)), _unclaimed_of(view, size)
    bound = [claim for claim in claims if claim.pod.uid in view.bound]
    # One that had tokens once is asked for again only where kubelet lost its checkpoint.
    shares = {claim.share for claim in bound if claim.pod.uid not in view.served}
    shares |= {demand.share for demand in demands}
    if len(shares) > 1:
        return Refusal(
            reason=Reason.AMBIGUOUS,
            message=f"pods of {size} slices and different shares "
            f"({', '.join(sorted(map(str, shares)))}) wait on this node, and at least one was "
            "bound without the arbiter: which of them this is can't be told",
        )
    waiting = _askers(view, claims, demands)
    claim = next((each for each in waiting if spread_of(each.shape) == spread), None)
    again = claim or (None if demands else _held_already(view, ids, spread))
    if again is not None:
        fault = None if claim is None else _overfull(view, claim.shape, claimed=True)
        granted = Grant(tokens=frozenset(ids), share=again.share, shape=again.shape, claimed=True)
        return fault or granted
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
    if claim is None or claim.state is not ClaimState.HELD or spread_of(claim.shape) != spread:
        return None  # of a pod that leaves, kubelet hands the tokens to another
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
    return _overfull(view, grant.shape, claimed=False) or grant


def _overfull(view: View, shape: Sequence[Part], *, claimed: bool) -> Refusal | None:
    """Return why these parts are too much, beside what was handed out without a claim."""
    for part in shape:
        gpu = view.ledger.gpu(part.gpu)
        taken_mib, taken_slices = _taken_beside(view, part.gpu)
        left_mib = view.ledger.free_mib(gpu) - taken_mib
        left_slices = view.ledger.free_slices(gpu) - taken_slices
        if claimed:
            # The ledger counts it already.
            left_mib, left_slices = left_mib + part.memory_mib, left_slices + part.slices
        if part.memory_mib > left_mib or part.slices > left_slices:
            return Refusal(
                reason=Reason.NO_ROOM,
                message=f"GPU {gpu.uuid} has {max(0, left_mib)} MiB and {max(0, left_slices)} "
                f"slices left for {part.memory_mib} MiB and {part.slices} slices: a pod was bound "
                "without the arbiter",
            )
    return None


def settle(view: View, *, before_seconds: float, over: Iterable[Claim] = ()) -> View:
    """Drop the grants in flight that are over: read back, or whose pod is gone.

    There can't be more of a kind in flight than claims that wait: the oldest go. A grant without
    a claim goes only if it was given before `before_seconds`: its pod may be one that this view
    doesn't know yet.
    """
    waiting = Counter(
        (claim.share, spread_of(claim.shape))
        for claim in view.ledger.claims
        if claim.pod.uid not in view.tokens
        and (claim.state is ClaimState.HELD or claim.pod.uid not in view.served)
    )
    dropped = Counter((claim.share, spread_of(claim.shape)) for claim in over)
    kept: list[Grant] = []
    is_old = False
    for grant in reversed(view.in_flight):
        if _is_read_back(grant, view):
            # kubelet admits one pod after the other: what is older and not there is gone already.
            is_old = True
            continue
        kind, is_late = (grant.share, grant.spread), grant.since_seconds < before_seconds
        if not grant.claimed:
            # No claim stands for what may live on of it.
            if not is_late:
                kept.append(grant)
            continue
        if is_old:
            continue
        waiting[kind] -= 1
        if waiting[kind] >= 0:
            kept.append(grant)
        elif is_late or dropped[kind] > 0:
            dropped[kind] -= 1
        else:
            # Its claim went before it was read back: a bind was given up that took place.
            kept.append(dataclasses.replace(grant, claimed=False))
    in_flight = tuple(reversed(kept))
    return view if in_flight == view.in_flight else dataclasses.replace(view, in_flight=in_flight)


def _is_read_back(grant: Grant, view: View) -> bool:
    """Whether a pod is known to have a grant's tokens, other than one that had them before."""
    return any(
        grant.tokens <= tokens for uid, tokens in view.tokens.items() if uid not in grant.former
    )


def gpus_of(grant: Grant, ledger: Ledger) -> tuple[Gpu, ...]:
    """Return the GPUs of a grant, in the order of its shape."""
    return tuple(ledger.gpu(part.gpu) for part in grant.shape)
