# SPDX-License-Identifier: Apache-2.0
"""kubelet's choice is granted if some pod that waits can have it, else refused with a reason."""

from __future__ import annotations

import dataclasses

import pytest

from deviceplugin import allocation
from deviceplugin.allocation import Grant, Reason, Refusal, View
from tests.unit.deviceplugin.claims import (
    HELD,
    LEAVING,
    claim,
    demand,
    gpu,
    ledger,
    tokens,
    uid,
)

GPUS = (gpu(0), gpu(1, memory_mib=15000))
A, B = GPUS


def check(view: View, ids: frozenset[str]) -> Grant | Refusal:
    return allocation.check(view, sorted(ids))


def refused(view: View, ids: frozenset[str]) -> Refusal:
    answer = check(view, ids)
    assert isinstance(answer, Refusal)
    return answer


def test_a_grant_means_the_claim_on_its_own_gpu() -> None:
    """Equal shares are of different MiB on unlike GPUs."""
    view = View(ledger=ledger(GPUS, claim("a", "0.5", 50, A), claim("b", "0.5", 50, B)))
    answer = check(view, tokens(B, range(50)))
    assert isinstance(answer, Grant)
    assert [part.memory_mib for part in answer.shape] == [7500]
    assert answer.claimed


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(View(ledger=ledger(GPUS, claim("a", "0.5", 50, A))), id="on another GPU"),
        pytest.param(
            View(ledger=ledger(GPUS, claim("a", "0.5", 50, B, state=LEAVING))), id="leaving"
        ),
        pytest.param(
            View(
                ledger=ledger(GPUS, claim("a", "0.5", 50, B, state=HELD)),
                tokens={uid("a"): tokens(B, range(50))},
            ),
            id="served already",
        ),
        pytest.param(
            View(
                ledger=ledger(GPUS, claim("a", "0.5", 50, B)),
                tokens={uid("a"): tokens(B, range(50))},
            ),
            id="served, and not yet marked as held",
        ),
        pytest.param(
            View(ledger=ledger(GPUS, claim("a", "0.5", 50, B, state=LEAVING, pod_gone=True))),
            id="pod gone",
        ),
    ],
)
def test_a_claim_that_does_not_wait_there_grants_nothing(view: View) -> None:
    assert refused(view, tokens(B, range(50, 100))).reason is Reason.NO_CLAIM


def test_tokens_over_two_gpus_are_no_share_of_one() -> None:
    view = View(ledger=ledger(GPUS, claim("a", "0.6", 60, A)))
    refusal = refused(view, tokens(A, range(30)) | tokens(B, range(30)))
    assert refusal.reason is Reason.NO_CLAIM
    assert "GPU-0 (30), GPU-1 (30)" in refusal.message
    assert "GPU-0 (60)" in refusal.message


def test_a_claim_is_served_once() -> None:
    view = View(ledger=ledger(GPUS, claim("a", "0.3", 30, A)))
    grant = check(view, tokens(A, range(30)))
    assert isinstance(grant, Grant)
    after = dataclasses.replace(view, in_flight=(grant,))
    assert refused(after, tokens(A, range(30, 60))).reason is Reason.NO_CLAIM


def test_a_held_claim_without_tokens_is_served_again() -> None:
    """Kubelet lost its checkpoint, and asks for a pod that ran before."""
    view = View(ledger=ledger(GPUS, claim("a", "0.3", 30, A, state=HELD)))
    assert isinstance(check(view, tokens(A, range(30))), Grant)


def test_without_the_arbiter_a_bound_pod_gets_what_has_room() -> None:
    view = View(ledger=ledger(GPUS), unclaimed=(demand("0.5", 50),))
    answer = check(view, tokens(B, range(50)))
    assert isinstance(answer, Grant)
    assert not answer.claimed
    assert answer.shape[0].memory_mib == 7500


def test_without_the_arbiter_memory_is_checked_as_well_as_tokens() -> None:
    """8000 MiB are one slice here, by a rule of other GPUs: tokens alone would let two in."""
    view = View(ledger=ledger(GPUS), unclaimed=(demand("8000mi", 1),) * 2)
    first = check(view, tokens(B, range(1)))
    assert isinstance(first, Grant)
    after = dataclasses.replace(view, in_flight=(first,))
    refusal = refused(after, tokens(B, range(1, 2)))
    assert refusal.reason is Reason.NO_ROOM
    assert "7000 MiB" in refusal.message


def test_without_the_arbiter_each_device_gets_its_k() -> None:
    view = View(ledger=ledger(GPUS), unclaimed=(demand("2x0.3", 30),))
    both = check(view, tokens(A, range(30)) | tokens(B, range(30)))
    assert isinstance(both, Grant)
    assert refused(view, tokens(A, range(60))).reason is Reason.NO_CLAIM
    uneven = tokens(A, range(20)) | tokens(B, range(40))
    assert refused(view, uneven).reason is Reason.NO_CLAIM


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(
            View(ledger=ledger(GPUS), unclaimed=(demand("0.5", 50), demand("9000mi", 50))),
            id="two pods without a claim",
        ),
        pytest.param(
            View(
                ledger=ledger(GPUS, claim("a", "9000mi", 50, A)),
                unclaimed=(demand("0.5", 50),),
                bound=frozenset({uid("a")}),
            ),
            id="one of them with a claim",
        ),
    ],
)
def test_unlike_pods_of_one_size_cannot_be_told_apart(view: View) -> None:
    refusal = refused(view, tokens(A, range(50)))
    assert refusal.reason is Reason.AMBIGUOUS
    assert "0.5, 9000mi" in refusal.message


def test_a_grant_is_over_when_it_is_read_back() -> None:
    view = View(ledger=ledger(GPUS, claim("a", "0.3", 30, A)))
    grant = check(view, tokens(A, range(30)))
    assert isinstance(grant, Grant)
    flying = dataclasses.replace(view, in_flight=(grant,))
    assert allocation.settle(flying, before_seconds=0) is flying
    seen = dataclasses.replace(flying, tokens={uid("a"): grant.tokens})
    assert allocation.settle(seen, before_seconds=0).in_flight == ()


def test_a_grant_whose_claim_has_ended_stands_for_no_other() -> None:
    """Kubelet refused the pod after Allocate: the tokens never show in its checkpoint."""
    view = View(ledger=ledger(GPUS, claim("a", "0.3", 30, A)))
    grant = check(view, tokens(A, range(30)))
    assert isinstance(grant, Grant)
    gone = View(ledger=ledger(GPUS), in_flight=(grant,))
    assert allocation.settle(gone, before_seconds=0, over=view.ledger.claims).in_flight == ()


def test_a_grant_whose_claim_an_arbiter_took_back_counts_as_one_without_a_claim() -> None:
    """The bind was given up, and took place all the same: the tokens are in use."""
    view = View(ledger=ledger(GPUS, claim("a", "0.3", 30, A)))
    grant = check(view, tokens(A, range(30)))
    assert isinstance(grant, Grant)
    (kept,) = allocation.settle(
        View(ledger=ledger(GPUS), in_flight=(grant,)), before_seconds=0
    ).in_flight
    assert kept == dataclasses.replace(grant, claimed=False)


def test_an_old_entry_of_a_dead_pod_reads_nothing_back() -> None:
    """Kubelet's checkpoint keeps entries of dead pods, and gives their tokens to others."""
    view = View(ledger=ledger(GPUS, claim("a", "0.3", 30, A)))
    grant = check(view, tokens(A, range(30)))
    assert isinstance(grant, Grant)
    former = dataclasses.replace(grant, former=frozenset({uid("dead")}))
    flying = dataclasses.replace(
        view, in_flight=(former,), tokens={uid("dead"): tokens(A, range(30))}
    )
    assert allocation.settle(flying, before_seconds=0) is flying


def test_a_claim_is_no_leave_to_take_what_a_stranger_was_given() -> None:
    """A pod bound without the arbiter has tokens for which the ledger has no room."""
    view = View(
        ledger=ledger(GPUS, claim("a", "0.6", 60, A)),
        unadopted=(claim("stranger", "0.5", 50, A),),
    )
    assert refused(view, tokens(A, range(60))).reason is Reason.NO_ROOM


def test_where_a_bound_pod_has_no_claim_an_unbound_ones_claim_is_not_taken_for_it() -> None:
    view = View(ledger=ledger(GPUS, claim("a", "9000mi", 50, A)), unclaimed=(demand("0.5", 50),))
    grant = check(view, tokens(A, range(50)))
    assert isinstance(grant, Grant)
    assert (str(grant.share), grant.claimed) == ("0.5", False)


def test_a_grant_without_a_claim_is_kept_until_its_pod_must_be_known() -> None:
    view = View(ledger=ledger(GPUS), unclaimed=(demand("0.5", 50),))
    grant = check(view, tokens(A, range(50)))
    assert isinstance(grant, Grant)
    flying = View(ledger=ledger(GPUS), in_flight=(dataclasses.replace(grant, since_seconds=5),))
    assert allocation.settle(flying, before_seconds=4).in_flight
    assert not allocation.settle(flying, before_seconds=6).in_flight


def test_tokens_that_an_init_container_of_the_pod_has_are_given_to_it_again() -> None:
    """Kubelet hands them on to the next container, and asks for that one too."""
    held = ledger(GPUS, claim("a", "0.5", 50, A, state=HELD))
    recorded = View(ledger=held, tokens={uid("a"): tokens(A, range(50))})
    answer = check(recorded, tokens(A, range(50)))
    assert isinstance(answer, Grant)
    assert answer.shape == held.claims[0].shape
    part = View(ledger=held, tokens={uid("a"): tokens(A, range(20))})
    assert isinstance(check(part, tokens(A, range(50))), Grant)


def test_tokens_of_two_pods_or_of_other_gpus_are_no_init_container_s() -> None:
    held = ledger(GPUS, claim("a", "0.5", 50, A, state=HELD), claim("b", "0.5", 50, A, state=HELD))
    view = View(
        ledger=held, tokens={uid("a"): tokens(A, range(50)), uid("b"): tokens(A, range(50, 100))}
    )
    assert refused(view, tokens(A, range(25, 75))).reason is Reason.NO_CLAIM
    assert refused(view, tokens(A, range(20))).reason is Reason.NO_CLAIM
