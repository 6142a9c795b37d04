# SPDX-License-Identifier: Apache-2.0
"""Why a pod waits, or what it has: read from the ledgers alone.

Pure: the arbiter's own arithmetic over a snapshot, beside the scheduler's own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuslice.contract import fits, names, placement, pods
from gpuslice.contract.ledger import Claim, ClaimState, Gpu, Ledger, PodRef
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import Share

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedGpu:
    """A GPU that takes no new claims."""

    uuid: names.GpuUuid
    why: str
    """``cordoned``, or ``unhealthy: `` and the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """What one node could give a waiting share."""

    node: names.NodeName
    serving: bool
    more: int
    """How many such shares fit now."""
    largest_free: str
    """As a share of the kind that was asked for; e.g. ``0.4`` or ``3517mi``."""
    largest_free_mib: int
    closed: tuple[ClosedGpu, ...] = ()
    leaving: tuple[PodRef, ...] = ()
    """Pods that are about to give their room back."""
    held_back_by: PodRef | None = None
    """A reservation that kubelet couldn't tell from this pod's: it must be held first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A sharing pod that is on no node."""

    pod: PodRef
    share: Share
    needs: str
    """In MiB of one GPU; e.g. ``11517 MiB``, or ``11517 to 40960 MiB`` where GPUs differ."""
    scheduler_words: str
    """The message of its condition `PodScheduled`, empty while there is none."""
    nodes: tuple[NodeRoom, ...]

    @property
    def more(self) -> int:
        """How many such shares fit now, over all nodes."""
        return sum(room.more for room in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another pod on the same GPU."""

    pod: PodRef
    memory_mib: int
    slices: int
    state: ClaimState


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a placed pod has of one GPU."""

    gpu: Gpu
    memory_mib: int
    slices: int
    free_mib: int
    neighbours: tuple[Neighbour, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A sharing pod with a claim."""

    pod: PodRef
    share: Share
    node: names.NodeName
    phase: str
    state: ClaimState
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """A pod that the ledgers say nothing about, and why."""

    pod: PodRef
    why: str


Reason = Waiting | Placed | Elsewhere


def explain_pod(pod: Json, ledgers: Sequence[Ledger], slice_resource: str) -> Reason:
    """Return why a pod waits, or what it has.

    Args:
        pod: the object as the API server has it.
        ledgers: of all nodes, as of about the same moment.
        slice_resource: the setting `resourceName`.
    """
    who = pods.ref(pod)
    for ledger in ledgers:
        claim = ledger.claim_of(who.uid)
        if claim is not None:
            return _placed(pod, claim, ledger)
    status = pod.get("status") or {}
    ask = pods.ask(pod, slice_resource)
    if ask is None:
        return Elsewhere(pod=who, why="asks for no share of a GPU")
    if pods.has_ended(pod):
        said = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
        return Elsewhere(pod=who, why=f"has ended ({status['phase']}) {said}".rstrip())
    if (node := pods.node_name(pod)) is not None:
        return Elsewhere(pod=who, why=f"is on node {node}, whose ledger has no claim of it yet")
    rooms = sorted((_room(ledger, ask.demand) for ledger in ledgers), key=lambda room: room.node)
    return Waiting(
        pod=who,
        share=ask.demand.share,
        needs=_needs(ask.demand.share, ledgers),
        scheduler_words=scheduler_words(pod),
        nodes=tuple(rooms),
    )


def scheduler_words(pod: Json) -> str:
    """Return why the scheduler didn't place a pod, in its own words, or an empty text."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "")
    return ""


def _needs(share: Share, ledgers: Sequence[Ledger]) -> str:
    kinds = {share.memory_mib_on(gpu.memory_mib) for ledger in ledgers for gpu in ledger.gpus}
    if not kinds:
        return "of a GPU that no node has yet" if share.memory_mib is None else f"{share}"
    least, most = min(kinds), max(kinds)
    return f"{least} MiB" if least == most else f"{least} to {most} MiB"


def _room(ledger: Ledger, demand: Demand) -> NodeRoom:
    most = placement.no_room(ledger, demand.share)
    unlike = placement.unlike_reservation(ledger, demand)
    return NodeRoom(
        node=ledger.node,
        serving=ledger.serving,
        more=fits.more(ledger, demand),
        largest_free=most.largest_free,
        largest_free_mib=most.largest_free_mib,
        closed=tuple(
            ClosedGpu(uuid=gpu.uuid, why=_why_closed(gpu)) for gpu in ledger.gpus if not gpu.open
        ),
        leaving=tuple(claim.pod for claim in ledger.claims if claim.state is ClaimState.LEAVING),
        held_back_by=None if unlike is None else unlike.pod,
    )


def _why_closed(gpu: Gpu) -> str:
    if not gpu.healthy:
        return f"unhealthy: {gpu.reason}" if gpu.reason else "unhealthy"
    return "cordoned"


def _placed(pod: Json, claim: Claim, ledger: Ledger) -> Placed:
    seats = []
    for part in claim.shape:
        gpu = ledger.gpu(part.gpu)
        neighbours = tuple(
            Neighbour(
                pod=other.pod,
                memory_mib=theirs.memory_mib,
                slices=theirs.slices,
                state=other.state,
            )
            for other in ledger.claims
            for theirs in other.shape
            if theirs.gpu == part.gpu and other.pod != claim.pod
        )
        seats.append(
            Seat(
                gpu=gpu,
                memory_mib=part.memory_mib,
                slices=part.slices,
                free_mib=ledger.free_mib(gpu),
                neighbours=neighbours,
            )
        )
    return Placed(
        pod=claim.pod,
        share=claim.share,
        node=ledger.node,
        phase=str((pod.get("status") or {}).get("phase") or "Pending"),
        state=claim.state,
        seats=tuple(seats),
    )
