# SPDX-License-Identifier: Apache-2.0
"""kubelet's question "which of these?" is answered with the GPUs of a claim that waits."""

from __future__ import annotations

from deviceplugin import allocation
from deviceplugin.allocation import Grant, View
from gpuslice.contract.ledger import Gpu
from tests.unit.deviceplugin.claims import (
    HELD,
    all_tokens,
    claim,
    demand,
    gpu,
    ledger,
    tokens,
    uid,
)

GPUS = (gpu(0), gpu(1))
A, B = GPUS


def on(picked: tuple[str, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in picked:
        name = each.partition("::")[0]
        counts[name] = counts.get(name, 0) + 1
    return counts


def prefer(
    view: View,
    size: int,
    available: frozenset[str] | None = None,
    must_include: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    offered = all_tokens(*GPUS) if available is None else available
    picked = allocation.prefer(view, available=offered, must_include=must_include, size=size)
    assert len(set(picked)) == len(picked)
    assert set(picked) <= offered | must_include
    return picked


def granted(share: str, slices: int, where: Gpu, numbers: range) -> Grant:
    made = claim("?", share, slices, where)
    return Grant(tokens=tokens(where, numbers), share=made.share, shape=made.shape, claimed=True)


def test_the_oldest_reservation_of_that_size_decides() -> None:
    view = View(
        ledger=ledger(
            GPUS, claim("x", "0.3", 30, A), claim("a", "0.6", 60, B), claim("b", "0.6", 60, A)
        )
    )
    assert on(prefer(view, 60)) == {"GPU-1": 60}


def test_a_grant_in_flight_stands_for_one_reservation() -> None:
    view = View(
        ledger=ledger(GPUS, claim("a", "0.6", 60, A), claim("b", "0.6", 60, B)),
        in_flight=(granted("0.6", 60, A, range(60)),),
    )
    assert on(prefer(view, 60)) == {"GPU-1": 60}


def test_a_claim_on_two_gpus_gets_its_k_on_each() -> None:
    view = View(ledger=ledger(GPUS, claim("a", "2x0.3", 30, A, B)))
    assert on(prefer(view, 60)) == {"GPU-0": 30, "GPU-1": 30}


def test_tokens_of_living_pods_are_taken_last_but_taken() -> None:
    """Kubelet knows better than we do who is dead."""
    busy = tokens(A, range(60))
    view = View(
        ledger=ledger(GPUS, claim("old", "0.5", 50, A, state=HELD), claim("a", "0.5", 50, A)),
        tokens={uid("old"): busy},
    )
    picked = prefer(view, 50, tokens(A, range(30, 90)))
    assert on(picked) == {"GPU-0": 50}
    assert len(busy & set(picked)) == 20


def test_the_answer_is_the_same_whatever_the_order_of_the_question() -> None:
    view = View(ledger=ledger(GPUS, claim("a", "0.1", 10, B)))
    forward = sorted(all_tokens(*GPUS))
    one = allocation.prefer(view, available=forward, must_include=(), size=10)
    other = allocation.prefer(view, available=forward[::-1], must_include=(), size=10)
    assert one == other == tuple(f"GPU-1::{number}" for number in range(10))


def test_what_a_container_has_already_is_kept_and_completed_on_the_same_gpu() -> None:
    """An init container's tokens come back as a part that must be included."""
    view = View(ledger=ledger(GPUS, claim("a", "0.6", 60, A), claim("b", "0.6", 60, B)))
    fixed = tokens(B, range(90, 94))
    picked = prefer(view, 60, must_include=fixed)
    assert on(picked) == {"GPU-1": 60}
    assert fixed <= set(picked)


def test_a_claim_whose_gpu_has_too_few_free_tokens_gives_way_to_the_next() -> None:
    view = View(ledger=ledger(GPUS, claim("a", "0.6", 60, A), claim("b", "0.6", 60, B)))
    offered = tokens(A, range(59)) | tokens(B, range(60))
    assert on(prefer(view, 60, offered)) == {"GPU-1": 60}


def test_a_bound_pod_without_a_claim_is_placed_where_there_is_room() -> None:
    view = View(
        ledger=ledger(GPUS, claim("old", "0.7", 70, A, state=HELD)),
        tokens={uid("old"): tokens(A, range(70))},
        unclaimed=(demand("0.5", 50),),
    )
    assert on(prefer(view, 50)) == {"GPU-1": 50}


def test_without_any_knowledge_all_are_of_one_gpu() -> None:
    assert on(prefer(View(ledger=ledger(GPUS)), 40)) == {"GPU-0": 40}


def test_what_no_gpu_has_is_still_answered_in_full() -> None:
    """A shortfall would be filled at random, and an error would fail the pod: Allocate decides."""
    offered = tokens(A, range(30)) | tokens(B, range(40))
    assert on(prefer(View(ledger=ledger(GPUS)), 60, offered)) == {"GPU-1": 40, "GPU-0": 20}


def test_ids_that_are_no_tokens_do_no_harm() -> None:
    picked = prefer(View(ledger=ledger(())), 2, frozenset({"nonsense", "x::y", ""}))
    assert len(picked) == 2
