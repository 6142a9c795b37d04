# SPDX-License-Identifier: Apache-2.0
"""The ledger refuses every change that would promise a GPU twice."""

from __future__ import annotations

import dataclasses

import pytest

from gpuslice.contract import fits, gpunode
from gpuslice.contract.ledger import (
    Claim,
    ClaimState,
    Gpu,
    Ledger,
    LedgerError,
    Part,
    PodRef,
)
from gpuslice.contract.names import GpuUuid, NodeName, PodUid
from gpuslice.contract.placement import (
    Demand,
    NoRoom,
    Policy,
    choose,
    claim_on,
    unlike_reservation,
)
from gpuslice.contract.shares import parse_share

L4_MIB = 23034


def gpu(index: int, memory_mib: int = L4_MIB) -> Gpu:
    return Gpu(
        uuid=GpuUuid(f"GPU-{index}"), index=index, product="L4", memory_mib=memory_mib, slices=100
    )


def claim(pod: str, share: str, on: str, slices: int, memory_mib: int) -> Claim:
    parts = tuple(
        Part(gpu=GpuUuid(uuid), memory_mib=memory_mib, slices=slices) for uuid in on.split(",")
    )
    return Claim(
        pod=PodRef(namespace="ml", name=pod, uid=PodUid(f"uid-{pod}")),
        container="main",
        share=parse_share(share),
        fit=parse_share(share),
        state=ClaimState.RESERVED,
        shape=parts,
    )


NODE = Ledger(node=NodeName("node-a"), gpus=(gpu(0), gpu(1)))
HALF = claim("a", "0.5", "GPU-0", 50, 11517)


def test_a_gpu_is_never_claimed_beyond_its_memory() -> None:
    ledger = NODE.with_claim(HALF)
    with pytest.raises(LedgerError, match="11517 MiB and 50 slices free"):
        ledger.with_claim(claim("b", "12000mi", "GPU-0", 50, 12000))


def test_a_gpu_is_never_claimed_beyond_its_tokens() -> None:
    with pytest.raises(LedgerError, match="50 slices free"):
        NODE.with_claim(HALF).with_claim(claim("b", "128mi", "GPU-0", 51, 128))


def test_a_pod_has_one_claim() -> None:
    with pytest.raises(LedgerError, match="already"):
        NODE.with_claim(HALF).with_claim(HALF)


def test_a_claim_names_each_gpu_once_and_none_that_is_not_there() -> None:
    with pytest.raises(LedgerError, match="distinct"):
        NODE.with_claim(claim("a", "2x0.25", "GPU-0,GPU-0", 25, 5758))
    with pytest.raises(LedgerError, match="no GPU GPU-9"):
        NODE.with_claim(claim("a", "0.5", "GPU-9", 50, 11517))


def test_exchanged_claims_swap_gpus_and_nothing_else() -> None:
    other = claim("b", "0.5", "GPU-1", 50, 11517)
    ledger = NODE.with_claim(HALF).with_claim(other).exchanged(HALF.pod.uid, other.pod.uid)
    swapped = ledger.claim_of(HALF.pod.uid)
    assert swapped == dataclasses.replace(HALF, shape=other.shape)
    assert not ledger.overclaimed()


def test_claims_of_different_shares_are_never_exchanged() -> None:
    other = claim("b", "11517mi", "GPU-1", 50, 11517)
    with pytest.raises(LedgerError, match="not alike"):
        NODE.with_claim(HALF).with_claim(other).exchanged(HALF.pod.uid, other.pod.uid)


def test_a_change_to_a_claim_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LedgerError, match="no claim"):
        NODE.with_state(PodUid("nobody"), ClaimState.HELD)


def test_a_claim_of_a_gone_pod_takes_room_but_counts_for_no_fit() -> None:
    share = parse_share("0.5")
    ledger = NODE.with_claim(HALF)
    assert fits.fits(ledger, [Demand(share=share, slices=50)]) == {share.fit_resource: 4}
    gone = ledger.with_pod_gone(HALF.pod.uid)
    assert fits.fits(gone, [Demand(share=share, slices=50)]) == {share.fit_resource: 3}


def test_a_node_that_does_not_serve_offers_nothing_more() -> None:
    share = parse_share("0.5")
    ledger = NODE.with_claim(HALF).with_serving(serving=False)
    assert fits.fits(ledger, [Demand(share=share, slices=50)]) == {share.fit_resource: 1}


def test_pack_takes_the_fullest_gpu_and_spread_the_emptiest() -> None:
    ledger = NODE.with_claim(claim("a", "0.5", "GPU-1", 50, 11517))
    demand = Demand(share=parse_share("0.25"), slices=25)
    packed, spread = (choose(ledger, demand, policy) for policy in Policy)
    assert not isinstance(packed, NoRoom)
    assert not isinstance(spread, NoRoom)
    assert [packed[0].uuid, spread[0].uuid] == ["GPU-1", "GPU-0"]


@pytest.mark.parametrize("closed", [{"healthy": False}, {"cordoned": True}])
def test_an_unhealthy_or_cordoned_gpu_takes_nothing(closed: dict[str, bool]) -> None:
    shut = dataclasses.replace(NODE, gpus=(dataclasses.replace(gpu(0), **closed),))
    outcome = choose(shut, Demand(share=parse_share("0.5"), slices=50), Policy.PACK)
    assert outcome == NoRoom(largest_free_mib=0, largest_free_slices=0, largest_free="0")


def test_no_room_tells_the_largest_free_share_of_the_kind_that_was_asked_for() -> None:
    ledger = NODE.with_claim(claim("a", "0.6", "GPU-0", 60, 13820))
    ledger = ledger.with_claim(claim("b", "0.7", "GPU-1", 70, 16123))
    by_fraction = choose(ledger, Demand(share=parse_share("0.5"), slices=50), Policy.PACK)
    by_memory = choose(ledger, Demand(share=parse_share("10000mi"), slices=43), Policy.PACK)
    assert isinstance(by_fraction, NoRoom)
    assert isinstance(by_memory, NoRoom)
    assert (by_fraction.largest_free, by_memory.largest_free) == ("0.4", "9214mi")


def test_two_devices_are_two_distinct_gpus() -> None:
    demand = Demand(share=parse_share("2x0.4"), slices=40)
    gpus = choose(NODE, demand, Policy.PACK)
    assert not isinstance(gpus, NoRoom)
    reserved = claim_on(gpus, demand, pod=HALF.pod, container="main", fit=parse_share("2x0.4"))
    assert sorted(reserved.gpus) == ["GPU-0", "GPU-1"]
    assert reserved.total_slices == 80


def test_only_a_reservation_of_the_same_total_and_another_share_is_unlike() -> None:
    reserved = NODE.with_claim(HALF)
    held = reserved.with_state(HALF.pod.uid, ClaimState.HELD)
    same_total = Demand(share=parse_share("11600mi"), slices=50)
    assert unlike_reservation(reserved, same_total) == HALF
    assert unlike_reservation(held, same_total) is None
    assert unlike_reservation(reserved, Demand(share=HALF.share, slices=50)) is None
    assert unlike_reservation(reserved, Demand(share=parse_share("0.4"), slices=40)) is None


def test_a_ledger_goes_over_the_wire_and_comes_back_the_same() -> None:
    ledger = NODE.with_claim(HALF).with_claim(claim("b", "2x0.25", "GPU-0,GPU-1", 25, 5758))
    ledger = ledger.with_pod_gone(HALF.pod.uid)
    wire = {
        "metadata": {"name": "node-a", "annotations": {"gpuslice.dev/cordon": "GPU-1"}},
        "spec": {
            "gpus": [
                {
                    "uuid": each.uuid,
                    "index": each.index,
                    "product": each.product,
                    "memoryMiB": each.memory_mib,
                    "slices": each.slices,
                }
                for each in reversed(ledger.gpus)
            ]
        },
        "status": gpunode.status_of(ledger),
    }
    cordoned = dataclasses.replace(gpu(1), cordoned=True)
    assert gpunode.ledger_of(wire) == dataclasses.replace(ledger, gpus=(gpu(0), cordoned))


def test_the_pods_annotations_name_the_gpus_and_what_it_has_of_each() -> None:
    assert gpunode.pod_annotations(claim("b", "2x0.25", "GPU-0,GPU-1", 25, 5758)) == {
        "gpuslice.dev/gpu": "GPU-0,GPU-1",
        "gpuslice.dev/memory-mib": "5758",
        "gpuslice.dev/slices": "50",
    }
