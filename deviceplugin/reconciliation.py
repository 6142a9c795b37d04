# SPDX-License-Identifier: Apache-2.0
"""Keeping the ledger true: from what is seen of pods and tokens to the claims that follow.

One pure step. It decides, and says what else must be found out; the agent looks, and asks again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from deviceplugin import exchange
from deviceplugin.spreads import named, shape_from, spread_of, spread_of_tokens
from gpuslice.contract import gpunode, names, pods
from gpuslice.contract.ledger import Claim, ClaimState, Ledger, LedgerError, PodRef
from gpuslice.contract.names import PodUid
from gpuslice.contract.placement import Demand

Json = Mapping[str, Any]


class Verdict(enum.StrEnum):
    """What a fresh read of the API says of a reservation's pod that is not on this node."""

    GONE = "gone"
    ELSEWHERE = "elsewhere"
    """Bound to another node."""
    UNBOUND = "unbound"
    """Still, after longer than any API request lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is seen, each thing by whoever sees it best."""

    pods: Mapping[PodUid, Json]
    """The sharing pods bound to this node, as the API has them."""
    tokens: Mapping[PodUid, frozenset[str]] = dataclasses.field(default_factory=dict)
    """What kubelet says that pods have; entries of pods that are gone may be among them."""
    released: frozenset[PodUid] = frozenset()
    """Pods that have ended, and that kubelet no longer knows."""
    ended: frozenset[PodUid] = frozenset()
    """Pods that were seen to have ended, whether they are still in the API or not."""
    verdicts: Mapping[PodUid, Verdict] = dataclasses.field(default_factory=dict)
    buried: frozenset[PodUid] = frozenset()
    """Force-deleted pods whose time is over, on the agent's own clock."""


class Repair(enum.StrEnum):
    """What was wrong, and was put right: the reason of an Event, and a metric's label."""

    EXCHANGED = "ClaimsExchanged"
    MOVED = "ClaimMoved"
    ADOPTED = "ClaimAdopted"
    EXPIRED = "ReservationEnded"
    VANISHED = "ClaimOfVanishedPod"
    OVERLAP = "TokensWithoutRoom"
    """Not put right: kubelet gave tokens where the ledger has no room for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One repair, for people."""

    repair: Repair
    pod: PodRef
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The ledger that follows, and what is left to do about it."""

    ledger: Ledger
    tokens: Mapping[PodUid, frozenset[str]]
    """What kubelet gave, without its entries of pods that are gone."""
    notes: tuple[Note, ...] = ()
    annotations: Mapping[PodRef, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """Pods whose annotations don't say what the ledger says, with what they should say."""
    leaving: tuple[PodRef, ...] = ()
    """Pods that have ended: does kubelet still know them?"""
    unseen: tuple[PodRef, ...] = ()
    """Pods with a reservation that are not on this node: where are they?"""
    over: tuple[Claim, ...] = ()
    """Claims that have ended."""
    unadopted: tuple[Claim, ...] = ()
    """What pods have by their tokens, where the ledger has no room for it."""
    unclaimed: tuple[Demand, ...] = ()
    """What bound pods ask for that have neither claim nor tokens."""


def reconcile(ledger: Ledger, sight: Sight, slice_resource: str) -> Outcome:
    """Return the ledger that follows from what is seen.

    It changes nothing where nothing is wrong, and a second pass over its own result changes
    nothing more.
    """
    notes: list[Note] = []
    living = {
        uid: ids
        for uid, ids in sight.tokens.items()
        if ids and (ledger.claim_of(uid) is not None or _may_run(sight.pods.get(uid)))
    }
    before = ledger.claims
    ledger = _ended(ledger, sight, living, notes)
    over = tuple(claim for claim in before if ledger.claim_of(claim.pod.uid) is None)
    ledger = _advanced(ledger, sight, living)
    held = {uid: ids for uid, ids in living.items() if ledger.claim_of(uid) is not None}
    ledger, repairs = exchange.realign(ledger, held)
    notes.extend(map(_note_of, repairs))
    ledger, unadopted = _adopted(ledger, sight, living, slice_resource, notes)
    return Outcome(
        ledger=ledger,
        tokens=living,
        notes=tuple(notes),
        annotations=_annotations(ledger, sight),
        over=over,
        unadopted=(*unadopted, *_misplaced(ledger, living)),
        leaving=tuple(
            claim.pod
            for claim in ledger.claims
            if claim.state is ClaimState.LEAVING
            and not claim.pod_gone
            and (_has_ended(claim.pod.uid, sight) or claim.pod.uid not in sight.pods)
        ),
        unseen=tuple(
            claim.pod
            for claim in ledger.claims
            if claim.state is ClaimState.RESERVED and claim.pod.uid not in sight.pods
        ),
        unclaimed=tuple(_unclaimed(ledger, sight, living, slice_resource)),
    )


def _may_run(pod: Json | None) -> bool:
    """Whether a pod may have tokens: an entry of one that has ended and has no claim is old."""
    return pod is not None and not pods.has_ended(pod)


def _has_ended(uid: PodUid, sight: Sight) -> bool:
    """Whether a pod has ended; that is seen a moment before its phase is."""
    pod = sight.pods.get(uid)
    return uid in sight.ended or (pod is not None and pods.has_ended(pod))


def _ended(
    ledger: Ledger, sight: Sight, living: Mapping[PodUid, frozenset[str]], notes: list[Note]
) -> Ledger:
    """Drop the claims that are over, and mark those that only stand for a dead pod's memory."""
    over: list[PodUid] = []
    for claim in ledger.claims:
        uid = claim.pod.uid
        if uid in sight.pods or uid in sight.ended:
            if _has_ended(uid, sight) and _is_let_go(claim.pod, sight):
                over.append(uid)
        elif claim.state is ClaimState.RESERVED and uid not in living:
            verdict = sight.verdicts.get(uid)
            if verdict is Verdict.GONE:
                # It may have been bound here at its end: then kubelet may still take it up.
                ledger = ledger.with_pod_gone(uid)
            elif verdict is not None:
                over.append(uid)
                notes.append(Note(repair=Repair.EXPIRED, pod=claim.pod, message=_EXPIRED[verdict]))
        elif uid in sight.buried:
            over.append(uid)
            notes.append(
                Note(
                    repair=Repair.VANISHED,
                    pod=claim.pod,
                    message="its pod was deleted without having ended; its claim was kept until "
                    "kubelet must have killed its processes",
                )
            )
        elif uid in sight.released or _is_succeeded(claim.pod, sight, living):
            # While kubelet knows the pod it adds it up: the fit must not fall before.
            ledger = ledger if claim.pod_gone else ledger.with_pod_gone(uid)
    return ledger.without(over)


def _is_let_go(pod: PodRef, sight: Sight) -> bool:
    """Whether kubelet has let a pod go that has ended.

    It is asked by name. A successor of that name is only there because kubelet has.
    """
    if pod.uid in sight.released:
        return True
    names_here = {(about.namespace, about.name) for about in map(pods.ref, sight.pods.values())}
    return pod.uid not in sight.pods and (pod.namespace, pod.name) in names_here


def _is_succeeded(pod: PodRef, sight: Sight, living: Mapping[PodUid, frozenset[str]]) -> bool:
    """Whether kubelet has taken up another pod of that name: it has let the former go."""
    return any(
        uid in living and (about.namespace, about.name) == (pod.namespace, pod.name)
        for uid, about in ((uid, pods.ref(each)) for uid, each in sight.pods.items())
        if uid != pod.uid
    )


_EXPIRED: Final[Mapping[Verdict, str]] = {
    Verdict.GONE: "its pod is gone, and was never bound here",
    Verdict.ELSEWHERE: "its pod was bound to another node",
    Verdict.UNBOUND: "its pod is still unbound, longer than any bind takes",
}


def _advanced(ledger: Ledger, sight: Sight, living: Mapping[PodUid, frozenset[str]]) -> Ledger:
    """Move each claim to the state that its pod shows."""
    for claim in ledger.claims:
        uid = claim.pod.uid
        pod = sight.pods.get(uid)
        if claim.pod_gone and pod is None:
            continue
        if claim.pod_gone:
            ledger = _with_pod_back(ledger, uid)
        reserved = claim.state is ClaimState.RESERVED
        if _has_ended(uid, sight):
            state = ClaimState.LEAVING
        elif reserved and uid not in living:
            # kubelet admits a pod that is being deleted like any other.
            continue
        elif pod is None or pods.is_leaving(pod):
            state = ClaimState.LEAVING
        else:
            state = ClaimState.HELD
        ledger = ledger.with_state(uid, state)
    return ledger


def _with_pod_back(ledger: Ledger, uid: PodUid) -> Ledger:
    """Take back what was said of a pod that is there after all."""
    claims = tuple(
        dataclasses.replace(claim, pod_gone=False, state=ClaimState.HELD)
        if claim.pod.uid == uid
        else claim
        for claim in ledger.claims
    )
    return dataclasses.replace(ledger, claims=claims)


def _note_of(repair: exchange.Repair) -> Note:
    claim, where = repair.claim, named(spread_of(repair.claim.shape))
    if isinstance(repair, exchange.Exchanged):
        return Note(
            repair=Repair.EXCHANGED,
            pod=claim.pod,
            message=f"kubelet served it before pod {repair.other.pod}, which is of the same share: "
            f"they exchanged their claims; it is on {where}",
        )
    if isinstance(repair, exchange.Moved):
        message = f"kubelet gave it tokens of other GPUs than it was placed on; it is on {where}"
        return Note(repair=Repair.MOVED, pod=claim.pod, message=message)
    return Note(
        repair=Repair.OVERLAP,
        pod=claim.pod,
        message=f"kubelet gave it tokens where it has no claim; its claim stays on {where}: "
        f"{repair.reason}",
    )


def _adopted(
    ledger: Ledger,
    sight: Sight,
    living: Mapping[PodUid, frozenset[str]],
    slice_resource: str,
    notes: list[Note],
) -> tuple[Ledger, tuple[Claim, ...]]:
    """Give bound pods without a claim the one that their tokens mean, or their annotations."""
    unadopted: list[Claim] = []
    for uid, pod in sorted(sight.pods.items()):
        ask = pods.ask(pod, slice_resource)
        if ask is None or ledger.claim_of(uid) is not None or _has_ended(uid, sight):
            continue
        spread = spread_of_tokens(living[uid]) if uid in living else _annotated(pod, ask.demand)
        if not spread:
            continue
        state = ClaimState.HELD if uid in living else ClaimState.RESERVED
        if pods.is_leaving(pod):
            state = ClaimState.LEAVING
        about = pods.ref(pod)
        try:
            claim = Claim(
                pod=about,
                container=ask.container,
                share=ask.demand.share,
                fit=ask.fit,
                state=state,
                shape=shape_from(ledger, ask.demand.share, spread),
            )
        except LedgerError as error:
            notes.append(Note(repair=Repair.OVERLAP, pod=about, message=str(error)))
            continue
        try:
            ledger = ledger.with_claim(claim)
        except LedgerError as error:
            if uid in living:
                unadopted.append(claim)
            notes.append(Note(repair=Repair.OVERLAP, pod=about, message=str(error)))
            continue
        message = f"it was bound without a claim in the ledger; it is on {named(spread)}"
        notes.append(Note(repair=Repair.ADOPTED, pod=about, message=message))
    return ledger, tuple(unadopted)


def _misplaced(ledger: Ledger, living: Mapping[PodUid, frozenset[str]]) -> Iterator[Claim]:
    """Yield what pods have whose tokens are elsewhere than their claim, and can't be moved."""
    for claim in ledger.claims:
        spread = spread_of_tokens(living.get(claim.pod.uid, ()))
        if spread and spread != spread_of(claim.shape):
            with contextlib.suppress(LedgerError):
                shape = shape_from(ledger, claim.share, spread)
                yield dataclasses.replace(claim, shape=shape)


def _annotated(pod: Json, demand: Demand) -> tuple[tuple[names.GpuUuid, int], ...]:
    """Return the GPUs that the arbiter annotated a pod with, () where it has not, or wrongly."""
    text = pods.annotations_of(pod).get(names.GPU_ANNOTATION, "")
    uuids = sorted({names.GpuUuid(each) for each in text.split(",") if each})
    if len(uuids) != demand.share.devices:
        return ()
    return tuple((uuid, demand.slices) for uuid in uuids)


def _annotations(ledger: Ledger, sight: Sight) -> dict[PodRef, dict[str, str]]:
    wanting: dict[PodRef, dict[str, str]] = {}
    for claim in ledger.claims:
        pod = sight.pods.get(claim.pod.uid)
        if pod is None or _has_ended(claim.pod.uid, sight):
            continue
        wanted, has = gpunode.pod_annotations(claim), pods.annotations_of(pod)
        if any(has.get(key) != value for key, value in wanted.items()):
            wanting[claim.pod] = wanted
    return wanting


def _unclaimed(
    ledger: Ledger,
    sight: Sight,
    living: Mapping[PodUid, frozenset[str]],
    slice_resource: str,
) -> Iterator[Demand]:
    for uid, pod in sorted(sight.pods.items()):
        if uid in living or ledger.claim_of(uid) is not None or pods.is_leaving(pod):
            continue
        ask = pods.ask(pod, slice_resource)
        if ask is not None:
            yield ask.demand
