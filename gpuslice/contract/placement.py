# SPDX-License-Identifier: Apache-2.0
"""Placement: which GPUs of a node a share goes to.

The arbiter, the fits and `gpuslice explain` all ask here, so that they can never disagree.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gpuslice.contract.ledger import Claim, ClaimState, Gpu, Ledger, Part, PodRef
from gpuslice.contract.shares import Share


class Policy(enum.StrEnum):
    """Which of several GPUs with room is taken."""

    PACK = "pack"
    """The fullest, so that whole GPUs stay free."""
    SPREAD = "spread"
    """The emptiest, so that neighbours are few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is to be placed."""

    share: Share
    slices: int
    """k, on each of the share's devices, as the pod was admitted."""

    @property
    def total_slices(self) -> int:
        """What the container asks kubelet for."""
        return self.slices * self.share.devices

    def part_on(self, gpu: Gpu) -> Part:
        """Return what it takes of a GPU."""
        memory_mib = self.share.memory_mib_on(gpu.memory_mib)
        return Part(gpu=gpu.uuid, memory_mib=memory_mib, slices=self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """No GPUs for a demand, and the most that one GPU of the node could still give."""

    largest_free_mib: int
    largest_free_slices: int
    """Of the GPU with `largest_free_mib`."""
    largest_free: str
    """The same as a share of the kind that was asked for; e.g. ``0.4`` or ``3517mi``."""


def room(ledger: Ledger, gpu: Gpu, demand: Demand) -> int:
    """Return how many times one GPU could still take one device's part of a demand.

    Zero where the GPU is unhealthy or cordoned.
    """
    part = demand.part_on(gpu)
    if not gpu.open:
        return 0
    by_slices = ledger.free_slices(gpu) // part.slices
    # Of a GPU with fewer MiB than slices a small fraction is zero MiB: slices alone decide there.
    by_memory = ledger.free_mib(gpu) // part.memory_mib if part.memory_mib else by_slices
    return max(0, min(by_memory, by_slices))


def _used(ledger: Ledger, gpu: Gpu) -> Fraction:
    """Return how much of a GPU is taken, 0 to 1, by its scarcer currency."""
    if gpu.memory_mib <= 0 or gpu.slices <= 0:
        return Fraction(1)
    free = min(
        Fraction(ledger.free_mib(gpu), gpu.memory_mib),
        Fraction(ledger.free_slices(gpu), gpu.slices),
    )
    return 1 - free


_PREFERENCES: Final[Mapping[Policy, Callable[[Ledger, Gpu], Fraction]]] = {
    Policy.PACK: lambda ledger, gpu: -_used(ledger, gpu),
    Policy.SPREAD: _used,
}
"""Per policy, the key by which GPUs are taken: lowest first."""


def choose(ledger: Ledger, demand: Demand, policy: Policy) -> tuple[Gpu, ...] | NoRoom:
    """Choose the GPUs for a demand.

    For one device: of the GPUs with room, the policy's first. For several, those with the most
    room, where the policy only breaks ties: anything else could leave `devices` GPUs with room
    for fewer claims than the fit has promised. Further ties go by index, then uuid.

    Returns:
        As many distinct GPUs as the share has devices, or what room there is.
    """
    rooms = {gpu.uuid: room(ledger, gpu, demand) for gpu in ledger.gpus}
    candidates = [gpu for gpu in ledger.gpus if rooms[gpu.uuid] > 0]
    devices = demand.share.devices
    if len(candidates) < devices:
        return no_room(ledger, demand.share)
    preference = _PREFERENCES[policy]
    candidates.sort(
        key=lambda gpu: (
            -rooms[gpu.uuid] if devices > 1 else 0,
            preference(ledger, gpu),
            gpu.memory_mib,
            gpu.index,
            gpu.uuid,
        )
    )
    return tuple(candidates[:devices])


def claim_on(
    gpus: tuple[Gpu, ...], demand: Demand, *, pod: PodRef, container: str, fit: Share
) -> Claim:
    """Return the reservation of a demand on the GPUs that `choose` chose."""
    return Claim(
        pod=pod,
        container=container,
        share=demand.share,
        fit=fit,
        state=ClaimState.RESERVED,
        shape=tuple(demand.part_on(gpu) for gpu in gpus),
    )


def no_room(ledger: Ledger, share: Share) -> NoRoom:
    """Say the most that one open GPU of a node could still give, in the words of `share`'s kind."""
    frees = [
        (max(0, ledger.free_mib(gpu)), max(0, ledger.free_slices(gpu)), gpu.memory_mib, gpu.slices)
        for gpu in ledger.gpus
        if gpu.open
    ]
    mib, slices, memory_mib, gpu_slices = max(frees, default=(0, 0, 1, 1))
    if share.memory_mib is not None:
        text = f"{mib}mi"
    else:
        free = min(Fraction(mib, max(1, memory_mib)), Fraction(slices, max(1, gpu_slices)))
        # Three decimals, rounded down: what is said to be free must really be there.
        text = str(Share(fraction=Fraction(free * 1000 // 1, 1000))) if free * 1000 >= 1 else "0"
    return NoRoom(largest_free_mib=mib, largest_free_slices=slices, largest_free=text)


def unlike_reservation(ledger: Ledger, demand: Demand) -> Claim | None:
    """Return a reservation that kubelet's next Allocate could not be told apart from.

    kubelet asks for a number of tokens without naming the pod. While two reservations of one
    number are of one share it doesn't matter which pod it serves first; of two shares it would.
    """
    for claim in ledger.claims:
        if (
            claim.state is ClaimState.RESERVED
            and claim.total_slices == demand.total_slices
            and claim.share != demand.share
        ):
            return claim
    return None
