# SPDX-License-Identifier: Apache-2.0
"""Claims end where their pods' tokens are, over as many exchanges as it takes."""

from __future__ import annotations

from deviceplugin import exchange
from deviceplugin.exchange import Exchanged, Moved, Stuck
from tests.unit.deviceplugin.claims import claim, gpu, ledger, tokens, uid

GPUS = (gpu(0), gpu(1), gpu(2))
A, B, C = GPUS


def places(made: exchange.Ledger) -> dict[str, tuple[str, ...]]:
    return {each.pod.name: each.gpus for each in made.claims}


def test_a_ring_of_three_takes_two_exchanges() -> None:
    before = ledger(
        GPUS, claim("a", "0.6", 60, A), claim("b", "0.6", 60, B), claim("c", "0.6", 60, C)
    )
    given = {uid(name): tokens(on, range(60)) for name, on in (("a", B), ("b", C), ("c", A))}
    after, repairs = exchange.realign(before, given)
    assert places(after) == {"a": ("GPU-1",), "b": ("GPU-2",), "c": ("GPU-0",)}
    assert [type(each) for each in repairs] == [Exchanged, Exchanged]


def test_a_pod_exchanges_with_one_that_has_nothing_yet() -> None:
    before = ledger(GPUS, claim("a", "0.6", 60, A), claim("b", "0.6", 60, B))
    after, _ = exchange.realign(before, {uid("a"): tokens(B, range(60))})
    assert places(after) == {"a": ("GPU-1",), "b": ("GPU-0",)}


def test_unlike_shares_are_never_exchanged() -> None:
    before = ledger(GPUS, claim("a", "0.6", 60, A), claim("b", "14000mi", 60, B))
    given = {uid("a"): tokens(B, range(60)), uid("b"): tokens(A, range(60))}
    after, repairs = exchange.realign(before, given)
    assert places(after) == {"a": ("GPU-1",), "b": ("GPU-0",)}
    assert [type(each) for each in repairs] == [Moved, Moved]
    assert after.claim_of(uid("b")).shape[0].memory_mib == 14000


def test_a_claim_goes_with_its_tokens_where_there_is_room() -> None:
    """Without our answers kubelet chooses at random, perhaps over two GPUs."""
    before = ledger(GPUS, claim("a", "0.6", 60, A))
    after, repairs = exchange.realign(
        before, {uid("a"): tokens(B, range(20)) | tokens(C, range(40))}
    )
    assert {part.gpu: part.slices for part in after.claims[0].shape} == {"GPU-1": 20, "GPU-2": 40}
    assert [type(each) for each in repairs] == [Moved]


def test_where_there_is_no_room_the_claim_stays_and_says_so() -> None:
    before = ledger(GPUS, claim("a", "0.6", 60, A), claim("b", "0.7", 70, B))
    given = {uid("a"): tokens(B, range(60)), uid("b"): tokens(B, range(70))}
    after, repairs = exchange.realign(before, given)
    assert after == before
    assert [type(each) for each in repairs] == [Stuck]


def test_what_is_right_is_left_alone() -> None:
    before = ledger(GPUS, claim("a", "0.6", 60, A), claim("b", "0.6", 60, B))
    given = {uid("a"): tokens(A, range(60)), uid("b"): tokens(B, range(60))}
    assert exchange.realign(before, given) == (before, ())
