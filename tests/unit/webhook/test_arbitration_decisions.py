# SPDX-License-Identifier: Apache-2.0
"""May this pod go to that node, and to which GPU: the decision alone."""

from __future__ import annotations

import dataclasses

import pytest

from gpuslice.contract.ledger import ClaimState, Ledger
from gpuslice.contract.names import NodeName, PodUid
from gpuslice.contract.placement import Policy
from tests.unit.webhook.ledgermaking import NODE, build_ask, build_ledger, ref, with_claim
from webhook.arbitration import AlreadyClaimed, Decision, Deny, Grant, Pass, Wait, arbitrate

TWO = build_ledger(2)


def decide(
    ledger: Ledger | None,
    share: str | None,
    *,
    uid: str = "new",
    departing: tuple[str, ...] = (),
    others: tuple[Ledger, ...] = (),
    policy: Policy = Policy.PACK,
) -> Decision:
    return arbitrate(
        ledger,
        None if share is None else build_ask(share),
        node=NODE,
        pod=ref(uid),
        policy=policy,
        departing=[PodUid(each) for each in departing],
        others=others,
    )


def test_a_pod_without_a_share_passes_anywhere() -> None:
    assert decide(None, None) == Pass()
    assert decide(build_ledger(serving=False), None) == Pass()


def test_a_share_gets_the_fullest_gpu_with_room_and_a_claim_on_it() -> None:
    ledger = with_claim(with_claim(TWO, "a", "0.3", gpu=0), "b", "0.6", gpu=1)
    decision = decide(ledger, "0.4")
    assert isinstance(decision, Grant)
    assert decision.claim.gpus == (TWO.gpus[1].uuid,)
    assert decision.claim.state is ClaimState.RESERVED
    assert decision.ledger.claim_of(PodUid("new")) == decision.claim
    assert len(decision.ledger.claims) == 3


def test_spread_takes_the_emptiest() -> None:
    ledger = with_claim(TWO, "a", "0.3", gpu=0)
    decision = decide(ledger, "0.4", policy=Policy.SPREAD)
    assert isinstance(decision, Grant)
    assert decision.claim.gpus == (TWO.gpus[1].uuid,)


def test_a_pod_with_a_claim_is_granted_it_again() -> None:
    ledger = with_claim(build_ledger(serving=False), "new", "0.5")
    assert decide(ledger, "0.5") == AlreadyClaimed(claim=ledger.claims[0])


def test_a_share_is_denied_on_a_node_without_gpus() -> None:
    decision = decide(None, "0.5")
    assert isinstance(decision, Deny)
    assert "node-a" in decision.message


def test_a_denial_names_node_share_largest_free_and_the_room_elsewhere() -> None:
    full = with_claim(build_ledger(), "a", "0.6")
    free = build_ledger(2, NodeName("node-b"))
    half = with_claim(build_ledger(1, NodeName("node-c")), "b", "0.5")
    decision = decide(full, "0.5", others=(full, free, half))
    assert decision == Deny(
        reason="no-room",
        message=(
            "no single GPU on node node-a has room for a share of 0.5 (largest free: 0.4); "
            "5 such fit on 2 other nodes"
        ),
    )
    assert decision.code == 409


def test_a_denial_of_several_gpus_says_so() -> None:
    decision = decide(with_claim(TWO, "a", "0.6"), "2x0.5")
    assert isinstance(decision, Deny)
    assert "no 2 GPUs" in decision.message
    assert "none fits on any other node" in decision.message


def test_a_memory_share_is_told_the_largest_free_memory() -> None:
    decision = decide(with_claim(build_ledger(), "a", "0.9"), "4000mi")
    assert isinstance(decision, Deny)
    assert "(largest free: 2304mi)" in decision.message


@pytest.mark.parametrize(
    ("ledger", "departing", "reason"),
    [
        pytest.param(build_ledger(serving=False), (), "not-serving", id="plugin away"),
        pytest.param(
            with_claim(TWO, "a", "0.5", state=ClaimState.RESERVED),
            (),
            None,
            id="a like reservation",
        ),
        pytest.param(
            with_claim(TWO, "a", "11517mi", state=ClaimState.RESERVED),
            (),
            "unlike-reservation",
            id="an unlike reservation of equal slices",
        ),
        pytest.param(
            with_claim(build_ledger(), "a", "0.6", state=ClaimState.LEAVING),
            (),
            "no-room",
            id="a claim that leaves",
        ),
        pytest.param(
            with_claim(build_ledger(), "a", "0.6"), ("a",), "no-room", id="a pod that is gone"
        ),
        pytest.param(
            with_claim(build_ledger(), "a", "0.6", state=ClaimState.LEAVING, pod_gone=True),
            (),
            "no-room",
            id="a pod deleted by force",
        ),
    ],
)
def test_it_waits_where_the_ledger_is_about_to_change(
    ledger: Ledger, departing: tuple[str, ...], reason: str | None
) -> None:
    decision = decide(ledger, "0.5", departing=departing)
    if reason is None:
        assert isinstance(decision, Grant)
    else:
        assert isinstance(decision, Wait)
        assert decision.denial.reason == reason


def test_it_does_not_wait_for_room_that_wont_be_enough() -> None:
    ledger = with_claim(with_claim(build_ledger(), "a", "0.1"), "b", "0.6")
    assert isinstance(decide(ledger, "0.5", departing=("a",)), Deny)
    assert isinstance(decide(ledger, "0.5", departing=("b",)), Wait)


@pytest.mark.parametrize("closed", [{"healthy": False}, {"cordoned": True}])
def test_a_closed_gpu_takes_nothing_new(closed: dict[str, bool]) -> None:
    gpu = dataclasses.replace(TWO.gpus[0], **closed)
    ledger = dataclasses.replace(TWO, gpus=(gpu, TWO.gpus[1]))
    decision = decide(ledger, "0.5")
    assert isinstance(decision, Grant)
    assert decision.claim.gpus == (TWO.gpus[1].uuid,)
    assert isinstance(decide(ledger, "2x0.5"), Deny)
