# SPDX-License-Identifier: Apache-2.0
"""What is seen of pods and tokens decides what becomes of their claims."""

from __future__ import annotations

from typing import Any

import pytest

from deviceplugin.reconciliation import Outcome, Repair, Sight, Verdict, reconcile
from gpuslice.contract import gpunode
from gpuslice.contract.ledger import Claim, Ledger
from gpuslice.contract.names import SLICE_RESOURCE, PodUid
from tests.unit.deviceplugin.claims import (
    HELD,
    LEAVING,
    RESERVED,
    claim,
    demand,
    gpu,
    ledger,
    pod,
    ref,
    tokens,
    uid,
)

GPUS = (gpu(0), gpu(1))
A, B = GPUS


def annotated(made: Claim, share: str, total: int, **more: Any) -> dict[str, Any]:
    return pod(made.pod.name, share, total, annotations=gpunode.pod_annotations(made), **more)


def seen(*pods: dict[str, Any], **more: Any) -> Sight:
    return Sight(pods={PodUid(each["metadata"]["uid"]): each for each in pods}, **more)


def settled(before: Ledger, sight: Sight) -> Outcome:
    outcome = reconcile(before, sight, SLICE_RESOURCE)
    again = reconcile(outcome.ledger, sight, SLICE_RESOURCE)
    assert again.ledger == outcome.ledger
    assert outcome.ledger.overclaimed() == ()
    return outcome


def state(outcome: Outcome, name: str) -> str:
    found = outcome.ledger.claim_of(uid(name))
    assert found is not None
    return "gone" if found.pod_gone else found.state.value


ONE = claim("a", "0.5", 50, A)


def test_a_reservation_is_held_once_kubelet_has_given_its_tokens() -> None:
    sight = seen(annotated(ONE, "0.5", 50), tokens={uid("a"): tokens(A, range(50))})
    outcome = settled(ledger(GPUS, ONE), sight)
    assert state(outcome, "a") == "Held"
    assert outcome.notes == ()
    assert outcome.annotations == {}


def test_a_reservation_waits_while_kubelet_has_given_nothing() -> None:
    outcome = settled(ledger(GPUS, ONE), seen(annotated(ONE, "0.5", 50)))
    assert state(outcome, "a") == "Reserved"
    assert outcome.unseen == ()


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param({"phase": "Succeeded"}, id="succeeded"),
        pytest.param({"phase": "Failed"}, id="failed"),
        pytest.param({"deleting": True}, id="being deleted"),
    ],
)
def test_a_pod_that_goes_keeps_its_claim_until_kubelet_lets_it_go(ending: dict[str, Any]) -> None:
    held = claim("a", "0.5", 50, A, state=HELD)
    sight = seen(annotated(held, "0.5", 50, **ending), tokens={uid("a"): tokens(A, range(50))})
    outcome = settled(ledger(GPUS, held), sight)
    assert state(outcome, "a") == "Leaving"
    assert outcome.leaving == ((ref("a"),) if "phase" in ending else ())


def test_the_claim_of_an_ended_pod_ends_when_kubelet_no_longer_knows_it() -> None:
    leaving = claim("a", "0.5", 50, A, state=LEAVING)
    sight = seen(
        annotated(leaving, "0.5", 50, phase="Succeeded"),
        tokens={uid("a"): tokens(A, range(50))},
        released=frozenset({uid("a")}),
    )
    assert settled(ledger(GPUS, leaving), sight).ledger.claims == ()


def test_a_running_pod_that_kubelet_does_not_know_yet_keeps_its_claim() -> None:
    """After a restart kubelet knows no pod for a moment."""
    held = claim("a", "0.5", 50, A, state=HELD)
    sight = seen(annotated(held, "0.5", 50), released=frozenset({uid("a")}))
    assert state(settled(ledger(GPUS, held), sight), "a") == "Held"


def test_a_pod_gone_after_its_end_is_asked_about_all_the_same() -> None:
    held = claim("a", "0.5", 50, A, state=HELD)
    outcome = settled(ledger(GPUS, held), seen(ended=frozenset({uid("a")})))
    assert state(outcome, "a") == "Leaving"
    assert outcome.leaving == (ref("a"),)


def test_a_successor_of_the_same_name_shows_that_the_old_pod_was_let_go() -> None:
    """A StatefulSet's next pod has the name that kubelet would be asked by."""
    leaving = claim("a", "0.5", 50, A, state=LEAVING)
    successor = pod("a", "0.5", 50)
    successor["metadata"]["uid"] = "uid-next"
    outcome = settled(ledger(GPUS, leaving), seen(successor, ended=frozenset({uid("a")})))
    assert outcome.ledger.claims == ()


@pytest.mark.parametrize("before", [HELD, LEAVING])
def test_a_force_deleted_pod_s_memory_stays_claimed_for_a_while(before: Any) -> None:
    """Kubelet kills its processes two seconds after the deletion, and lists it nowhere.

    Until kubelet has let it go it adds the pod up: the fit must not fall before.
    """
    held = claim("a", "0.5", 50, A, state=before)
    leaving = settled(ledger(GPUS, held), seen())
    assert state(leaving, "a") == "Leaving"
    assert leaving.leaving == (ref("a"),)
    gone = settled(leaving.ledger, seen(released=frozenset({uid("a")})))
    assert state(gone, "a") == "gone"
    over = settled(gone.ledger, seen(buried=frozenset({uid("a")})))
    assert over.ledger.claims == ()
    assert [note.repair for note in over.notes] == [Repair.VANISHED]


def test_a_force_deleted_pod_that_was_never_marked_held_is_no_mere_reservation() -> None:
    """Kubelet gave it tokens; whether its process runs nobody knows."""
    sight = seen(tokens={uid("a"): tokens(A, range(50))})
    outcome = settled(ledger(GPUS, ONE), sight)
    assert state(outcome, "a") == "Leaving"
    assert outcome.leaving == (ref("a"),)


def test_a_pod_that_is_there_after_all_has_its_claim_back() -> None:
    gone = claim("a", "0.5", 50, A, state=LEAVING, pod_gone=True)
    sight = seen(annotated(gone, "0.5", 50), tokens={uid("a"): tokens(A, range(50))})
    assert state(settled(ledger(GPUS, gone), sight), "a") == "Held"


def test_a_reservation_of_a_deleted_pod_keeps_its_room_for_a_while() -> None:
    """It may have been bound here at its end: then kubelet may still take it up."""
    outcome = settled(ledger(GPUS, ONE), seen(verdicts={uid("a"): Verdict.GONE}))
    assert state(outcome, "a") == "gone"


@pytest.mark.parametrize("verdict", [Verdict.ELSEWHERE, Verdict.UNBOUND])
def test_a_reservation_ends_only_by_what_a_fresh_read_says(verdict: Verdict) -> None:
    waiting = settled(ledger(GPUS, ONE), seen())
    assert state(waiting, "a") == "Reserved"
    assert waiting.unseen == (ref("a"),)
    over = settled(ledger(GPUS, ONE), seen(verdicts={uid("a"): verdict}))
    assert over.ledger.claims == ()
    assert [note.repair for note in over.notes] == [Repair.EXPIRED]


def test_a_verdict_on_a_pod_that_came_here_after_all_is_void() -> None:
    sight = seen(annotated(ONE, "0.5", 50), verdicts={uid("a"): Verdict.UNBOUND})
    assert state(settled(ledger(GPUS, ONE), sight), "a") == "Reserved"


def test_a_bound_pod_without_a_claim_gets_the_one_that_its_tokens_mean() -> None:
    sight = seen(
        pod("a", "2x0.3", 60), tokens={uid("a"): tokens(A, range(30)) | tokens(B, range(30))}
    )
    outcome = settled(ledger(GPUS), sight)
    (made,) = outcome.ledger.claims
    assert made == claim("a", "2x0.3", 30, A, B, state=HELD)
    assert outcome.annotations == {ref("a"): gpunode.pod_annotations(made)}
    assert [note.repair for note in outcome.notes] == [Repair.ADOPTED]
    assert outcome.unclaimed == ()


def test_a_bound_pod_without_claim_and_tokens_is_what_allocate_may_expect() -> None:
    outcome = settled(ledger(GPUS), seen(pod("a", "0.5", 50)))
    assert outcome.ledger.claims == ()
    assert outcome.unclaimed == (demand("0.5", 50),)


def test_an_annotated_pod_whose_claim_was_lost_has_it_again() -> None:
    """Somebody deleted the GpuNode."""
    outcome = settled(ledger(GPUS), seen(annotated(ONE, "0.5", 50)))
    assert outcome.ledger.claims == (claim("a", "0.5", 50, A, state=RESERVED),)


def test_a_pod_that_was_bound_too_early_to_be_annotated_is_annotated_from_its_claim() -> None:
    outcome = settled(ledger(GPUS, ONE), seen(pod("a", "0.5", 50)))
    assert outcome.annotations == {ref("a"): gpunode.pod_annotations(ONE)}


def test_kubelet_s_entries_of_pods_that_are_gone_are_ignored() -> None:
    sight = seen(tokens={uid("dead"): tokens(A, range(100))})
    outcome = settled(ledger(GPUS), sight)
    assert outcome.ledger.claims == ()
    assert outcome.tokens == {}


def test_two_equal_pods_that_got_each_other_s_tokens_exchange_their_claims() -> None:
    first, second = claim("a", "0.5", 50, A), claim("b", "0.5", 50, B)
    sight = seen(
        annotated(first, "0.5", 50),
        annotated(second, "0.5", 50),
        tokens={uid("a"): tokens(B, range(50)), uid("b"): tokens(A, range(50))},
    )
    outcome = settled(ledger(GPUS, first, second), sight)
    assert {each.pod.name: each.gpus for each in outcome.ledger.claims} == {
        "a": ("GPU-1",),
        "b": ("GPU-0",),
    }
    assert [note.repair for note in outcome.notes] == [Repair.EXCHANGED]
    assert set(outcome.annotations) == {ref("a"), ref("b")}


def test_tokens_where_the_ledger_has_no_room_are_told_and_nothing_is_promised_twice() -> None:
    full = claim("b", "1", 100, B, state=HELD)
    sight = seen(
        annotated(ONE, "0.5", 50),
        annotated(full, "1", 100),
        tokens={uid("a"): tokens(B, range(50)), uid("b"): tokens(B, range(100))},
    )
    outcome = settled(ledger(GPUS, ONE, full), sight)
    assert [note.repair for note in outcome.notes] == [Repair.OVERLAP]
    assert outcome.ledger.claim_of(uid("a")) is not None
