# SPDX-License-Identifier: Apache-2.0
"""The ledger: the claims of one node's GPUs, and the few changes it knows.

A ledger is a value. Each change returns a new one, or raises where a promise would be made twice.
Writing it by compare-and-swap is the shells' business.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuslice.contract.names import GpuUuid, NodeName, PodUid
from gpuslice.contract.shares import Share


class LedgerError(ValueError):
    """A change would break the ledger: a GPU promised twice, or a claim that isn't there."""


class ClaimState(enum.StrEnum):
    """How far a claim's pod has come."""

    RESERVED = "Reserved"
    """The arbiter chose the GPU; kubelet has not handed the tokens out yet."""
    HELD = "Held"
    """kubelet has handed its tokens out."""
    LEAVING = "Leaving"
    """Its pod has ended or is being deleted; kubelet may still hold the tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    """Which pod: its name for people, its uid for certainty."""

    namespace: str
    name: str
    uid: PodUid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a claim takes of one GPU."""

    gpu: GpuUuid
    memory_mib: int
    slices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A share once placed."""

    pod: PodRef
    container: str
    """The one container that gets the GPU."""
    share: Share
    fit: Share
    """The share whose fit the pod asks for: its own, or a larger one beyond the cap of shares."""
    state: ClaimState
    shape: tuple[Part, ...]
    """One part for each of its distinct GPUs."""
    binds: int = 1
    """How many binds it was granted to: a later one must not lose it to an earlier one's end."""
    pod_gone: bool = False
    """Kept only for a force-deleted pod's memory: room taken, but no claim of a fit."""

    @property
    def total_slices(self) -> int:
        """How many tokens its container asks kubelet for."""
        return sum(part.slices for part in self.shape)

    @property
    def gpus(self) -> tuple[GpuUuid, ...]:
        """Its GPUs, in the order of its shape."""
        return tuple(part.gpu for part in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU or MIG instance, as far as placement needs it."""

    uuid: GpuUuid
    index: int
    product: str
    memory_mib: int
    """For sale: NVML's total less the driver's reserve."""
    slices: int
    """N, the number of its tokens."""
    healthy: bool = True
    reason: str = ""
    """Why it is not healthy; e.g. ``XID 79``."""
    cordoned: bool = False
    """A person wants no new claims on it."""

    @property
    def open(self) -> bool:
        """Whether it takes new claims."""
        return self.healthy and not self.cordoned


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """One node: its GPUs in the order of their index, and the claims on them."""

    node: NodeName
    gpus: tuple[Gpu, ...]
    claims: tuple[Claim, ...] = ()
    serving: bool = True
    """Whether kubelet has the device plugin's stream open: while it has not, a pod that it admits
    would fail."""

    def gpu(self, uuid: GpuUuid) -> Gpu:
        """Return a GPU of this node.

        Raises:
            LedgerError: where the node has none of that uuid.
        """
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise LedgerError(f"node {self.node} has no GPU {uuid}")

    def claim_of(self, pod_uid: PodUid) -> Claim | None:
        """Return the claim of a pod, None where it has none."""
        return next((claim for claim in self.claims if claim.pod.uid == pod_uid), None)

    def parts_on(self, uuid: GpuUuid) -> tuple[Part, ...]:
        """Return what is claimed of one GPU."""
        return tuple(part for claim in self.claims for part in claim.shape if part.gpu == uuid)

    def free_mib(self, gpu: Gpu) -> int:
        """Return the MiB of a GPU that no claim has; below zero if its memory shrank."""
        return gpu.memory_mib - sum(part.memory_mib for part in self.parts_on(gpu.uuid))

    def free_slices(self, gpu: Gpu) -> int:
        """Return the tokens of a GPU that no claim has."""
        return gpu.slices - sum(part.slices for part in self.parts_on(gpu.uuid))

    def is_empty(self, gpu: Gpu) -> bool:
        """Whether nothing is claimed of a GPU."""
        return not self.parts_on(gpu.uuid)

    def overclaimed(self) -> tuple[GpuUuid, ...]:
        """Return the GPUs with more claimed than there is: never any (invariant 1)."""
        return tuple(
            gpu.uuid for gpu in self.gpus if self.free_mib(gpu) < 0 or self.free_slices(gpu) < 0
        )

    # --- changes

    def with_claim(self, claim: Claim) -> Ledger:
        """Add a claim.

        Raises:
            LedgerError: where its pod has one already, a GPU is unknown or named twice, or has no
                room for it. Whether a GPU is open is the chooser's business: what already runs on
                a sick or cordoned GPU must be enterable.
        """
        if self.claim_of(claim.pod.uid) is not None:
            raise LedgerError(f"pod {claim.pod} has a claim on node {self.node} already")
        if len(set(claim.gpus)) != len(claim.shape) or not claim.shape:
            raise LedgerError(f"the claim of pod {claim.pod} needs distinct GPUs")
        for part in claim.shape:
            gpu = self.gpu(part.gpu)
            free_mib, free_slices = self.free_mib(gpu), self.free_slices(gpu)
            if part.memory_mib > free_mib or part.slices > free_slices:
                raise LedgerError(
                    f"GPU {gpu.uuid} has {free_mib} MiB and {free_slices} slices free, and pod "
                    f"{claim.pod} claims {part.memory_mib} MiB and {part.slices} slices"
                )
        return dataclasses.replace(self, claims=(*self.claims, claim))

    def without(self, pod_uids: Iterable[PodUid]) -> Ledger:
        """Drop the claims of these pods, those that have one."""
        gone = frozenset(pod_uids)
        kept = tuple(claim for claim in self.claims if claim.pod.uid not in gone)
        return self if len(kept) == len(self.claims) else dataclasses.replace(self, claims=kept)

    def with_state(self, pod_uid: PodUid, state: ClaimState) -> Ledger:
        """Move a claim to another state.

        Raises:
            LedgerError: where the pod has no claim.
        """
        return self._changed(pod_uid, lambda claim: dataclasses.replace(claim, state=state))

    def with_pod_gone(self, pod_uid: PodUid) -> Ledger:
        """Mark a claim as kept only for its force-deleted pod's memory.

        Raises:
            LedgerError: where the pod has no claim.
        """
        return self._changed(
            pod_uid,
            lambda claim: dataclasses.replace(claim, pod_gone=True, state=ClaimState.LEAVING),
        )

    def with_bind(self, pod_uid: PodUid) -> Ledger:
        """Grant a claim to one more bind.

        Raises:
            LedgerError: where the pod has no claim.
        """
        return self._changed(
            pod_uid, lambda claim: dataclasses.replace(claim, binds=claim.binds + 1)
        )

    def exchanged(self, first: PodUid, second: PodUid) -> Ledger:
        """Give two pods each other's GPUs: kubelet handed them each other's tokens.

        Raises:
            LedgerError: where one has no claim, or their claims are of different shares.
        """
        one, other = self.claim_of(first), self.claim_of(second)
        if one is None or other is None:
            raise LedgerError(f"pods {first} and {second} don't both have a claim")
        if one.share != other.share or one.total_slices != other.total_slices:
            raise LedgerError(f"the claims of pods {one.pod} and {other.pod} are not alike")
        swapped = {first: other.shape, second: one.shape}
        claims = tuple(
            dataclasses.replace(claim, shape=swapped.get(claim.pod.uid, claim.shape))
            for claim in self.claims
        )
        return dataclasses.replace(self, claims=claims)

    def with_serving(self, *, serving: bool) -> Ledger:
        """Say whether kubelet has the plugin's stream open."""
        return self if serving == self.serving else dataclasses.replace(self, serving=serving)

    def _changed(self, pod_uid: PodUid, change: Callable[[Claim], Claim]) -> Ledger:
        if self.claim_of(pod_uid) is None:
            raise LedgerError(f"pod {pod_uid} has no claim on node {self.node}")
        claims = tuple(
            change(claim) if claim.pod.uid == pod_uid else claim for claim in self.claims
        )
        return dataclasses.replace(self, claims=claims)
