# SPDX-License-Identifier: Apache-2.0
"""The invariants, added up anew: from the claims as they are written, kubelet's tokens, and the
containers that run. None of `gpuslice.contract`'s own sums is used.
"""  # noqa: D205 - one sentence

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gpuslice.contract import gpunode, pods
from gpuslice.contract.ledger import Claim, ClaimState, Gpu, Ledger
from gpuslice.contract.names import GpuUuid, PodUid
from gpuslice.contract.tokens import parse_token
from tests.property.placement import podmaking
from tests.property.placement.apiserver import Json
from tests.property.placement.containers import Process


class ViolationError(AssertionError):
    """An invariant doesn't hold."""

    def __init__(self, invariant: int, message: str) -> None:
        super().__init__(f"invariant {invariant}: {message}")
        self.invariant = invariant


def check_claims(ledger: Ledger) -> None:
    """Claims on a GPU never exceed its memory, and never its tokens (1)."""
    for gpu in ledger.gpus:
        parts = [part for claim in ledger.claims for part in claim.shape if part.gpu == gpu.uuid]
        memory_mib, slices = sum(p.memory_mib for p in parts), sum(p.slices for p in parts)
        if memory_mib > gpu.memory_mib or slices > gpu.slices:
            text = f"{gpu.uuid} has {memory_mib} MiB and {slices} slices claimed"
            raise ViolationError(1, text)
    uids = [claim.pod.uid for claim in ledger.claims]
    if len(set(uids)) != len(uids):
        raise ViolationError(1, f"a pod has two claims on {ledger.node}")


def check_processes(gpus: Iterable[Gpu], processes: Iterable[Process]) -> None:
    """What living containers were given never exceeds a GPU either (1)."""
    slices: Counter[GpuUuid] = Counter()
    memory_mib: Counter[GpuUuid] = Counter()
    for process in processes:
        slices.update(process.slices)
        memory_mib.update(process.memory_mib)
    for gpu in gpus:
        if slices[gpu.uuid] > gpu.slices or memory_mib[gpu.uuid] > gpu.memory_mib:
            text = f"what runs on {gpu.uuid} has {memory_mib[gpu.uuid]} MiB and "
            raise ViolationError(1, f"{text}{slices[gpu.uuid]} slices")


def check_spread(pod: Json, process: Process) -> None:
    """A container's tokens are on as many GPUs as its share has devices, k on each (2)."""
    share = pods.share(pod)
    assert share is not None
    size = int(podmaking.limits_of(pod)[podmaking.RESOURCE])
    if list(process.slices.values()) != [size // share.devices] * share.devices:
        raise ViolationError(2, f"the tokens of {process.uid} are spread: {process.slices}")


def is_given_its_share(pod: Json, process: Process, gpus: Iterable[Gpu]) -> bool:
    """Whether a container is told of what its pod asks for."""
    share = pods.share(pod)
    assert share is not None
    size = int(podmaking.limits_of(pod)[podmaking.RESOURCE])
    memories = {gpu.uuid: share.memory_mib_on(gpu.memory_mib) for gpu in gpus}
    told = {part.gpu: (part.memory_mib, part.slices) for part in process.given}
    asked = {gpu: (memories[gpu], size // share.devices) for gpu in told}
    return told == asked and len(told) == share.devices


def check_quiet(
    ledger: Ledger,
    here: Mapping[PodUid, Json],
    tokens: Mapping[PodUid, frozenset[str]],
) -> None:
    """When all is quiet, the ledger is what kubelet has given (2 and 5).

    Args:
        ledger: of one node.
        here: the pods bound there that have not ended.
        tokens: what kubelet has given to them.
    """
    claims = {claim.pod.uid: claim for claim in ledger.claims}
    if claims.keys() != here.keys():
        odd = sorted(claims.keys() ^ here.keys())
        raise ViolationError(5, f"claims of {ledger.node} and its pods differ: {odd}")
    if not ledger.serving:
        raise ViolationError(5, f"{ledger.node} is not said to be serving")
    for uid, claim in claims.items():
        spread = Counter(parse_token(each)[0] for each in tokens[uid])
        if spread != Counter({part.gpu: part.slices for part in claim.shape}):
            raise ViolationError(2, f"{uid} has {dict(spread)}, and claims {claim.gpus}")
        if claim.state is not ClaimState.HELD or claim.pod_gone:
            raise ViolationError(5, f"the claim of {uid}, which runs, is {claim.state}")
        _check_annotations(here[uid], claim)


def _check_annotations(pod: Json, claim: Claim) -> None:
    said = pods.annotations_of(pod)
    for key, value in gpunode.pod_annotations(claim).items():
        if said.get(key) != value:
            raise ViolationError(5, f"pod {claim.pod} says {said.get(key)} for {key}: {value}")


def check_waiting(waiting: Json, ledger: Ledger, processes: Iterable[Process]) -> None:
    """When all is quiet, no pod waits for what a node has (4)."""
    share = pods.share(waiting)
    assert share is not None
    slices = int(podmaking.limits_of(waiting)[podmaking.RESOURCE]) // share.devices
    running = [each for each in processes if each.node == ledger.node]
    sick = {gpu.uuid for gpu in ledger.gpus if not gpu.healthy}
    if any(not sick.isdisjoint(each.slices) for each in running):
        return  # its slices are lacking in the scheduler's sum: a stated limit
    room = 0
    for gpu in ledger.gpus:
        free = gpu.memory_mib - sum(each.memory_mib.get(gpu.uuid, 0) for each in running)
        tokens = gpu.slices - sum(each.slices.get(gpu.uuid, 0) for each in running)
        has_room = free >= share.memory_mib_on(gpu.memory_mib) and tokens >= slices
        room += has_room and gpu.healthy and not gpu.cordoned
    if room >= share.devices:
        name = waiting["metadata"]["name"]
        raise ViolationError(4, f"{name} of {share} waits, and {ledger.node} has room")
