# SPDX-License-Identifier: Apache-2.0
"""What is preferred is always enough, and what is preferred for a claim is always granted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin import allocation
from deviceplugin.allocation import Grant, View
from gpuslice.contract.ledger import ClaimState, LedgerError
from tests.unit.deviceplugin.claims import (
    HELD,
    RESERVED,
    all_tokens,
    claim,
    demand,
    gpu,
    ledger,
    uid,
)

GPUS = tuple(gpu(index, slices=10, memory_mib=1000) for index in range(3))
EVERY = sorted(all_tokens(*GPUS))
SHARES = {"0.3": 3, "0.5": 5, "0.6": 6, "2x0.3": 3, "600mi": 6}


@st.composite
def views(draw: st.DrawFn) -> View:
    """A ledger filled at random; tokens of what is held, some of them not where the ledger says."""
    made = ledger(GPUS)
    tokens = {}
    for number in range(draw(st.integers(0, 6))):
        share = draw(st.sampled_from(sorted(SHARES)))
        on = draw(st.permutations(GPUS))[: 2 if share.startswith("2x") else 1]
        state: ClaimState = draw(st.sampled_from([RESERVED, HELD]))
        new = claim(str(number), share, SHARES[share], *on, state=state)
        try:
            made = made.with_claim(new)
        except LedgerError:
            continue
        if state is HELD and draw(st.booleans()):
            size = new.total_slices
            tokens[uid(str(number))] = frozenset(
                draw(st.lists(st.sampled_from(EVERY), min_size=size, max_size=size, unique=True))
            )
    unclaimed = draw(st.lists(st.sampled_from(sorted(SHARES)), max_size=2))
    return View(
        ledger=made,
        tokens=tokens,
        unclaimed=tuple(demand(share, SHARES[share]) for share in unclaimed),
    )


questions = st.tuples(
    st.sets(st.sampled_from(EVERY)), st.sets(st.sampled_from(EVERY), max_size=3), st.integers(1, 10)
)


@given(views(), questions)
def test_the_answer_has_exactly_the_size_asked_for(
    view: View, question: tuple[set[str], set[str], int]
) -> None:
    """Kubelet fills a shortfall at random, and takes a random part of too many."""
    available, must_include, size = question
    picked = allocation.prefer(
        view, available=available | must_include, must_include=must_include, size=size
    )
    assert len(picked) == len(set(picked)) == min(size, len(available | must_include))
    assert set(picked) <= available | must_include
    assert len(must_include & set(picked)) == min(size, len(must_include))


@given(views(), st.sets(st.sampled_from(EVERY)), st.integers(1, 10))
def test_where_a_waiting_claim_can_be_served_the_answer_serves_one(
    view: View, available: set[str], size: int
) -> None:
    claims = list(allocation.waiting_claims(view, size))
    able = [
        each
        for each in claims
        if all(
            sum(token.startswith(f"{part.gpu}::") for token in available) >= part.slices
            for part in each.shape
        )
    ]
    picked = allocation.prefer(view, available=available, must_include=(), size=size)
    if able:
        on = {token.partition("::")[0] for token in picked}
        assert on in [set(each.gpus) for each in able]


@given(views(), st.integers(1, 10))
def test_what_was_preferred_for_a_claim_is_granted_and_serves_one_claim(
    view: View, size: int
) -> None:
    waiting = list(allocation.waiting_claims(view, size))
    shares = {each.share for each in waiting}
    if not waiting or len(shares | {each.share for each in view.unclaimed}) > 1:
        return
    picked = allocation.prefer(view, available=EVERY, must_include=(), size=size)
    answer = allocation.check(view, picked)
    assert isinstance(answer, Grant)
    after = View(
        ledger=view.ledger,
        tokens=view.tokens,
        unclaimed=view.unclaimed,
        in_flight=(answer,),
    )
    left = list(allocation.waiting_claims(after, size))
    assert len(left) == len(waiting) - 1


@given(views(), st.lists(st.sampled_from(EVERY), max_size=10, unique=True))
def test_a_grant_never_promises_more_than_the_ledger_has_room_for(
    view: View, ids: list[str]
) -> None:
    answer = allocation.check(view, ids)
    if isinstance(answer, Grant) and not answer.claimed:
        for part in answer.shape:
            where = view.ledger.gpu(part.gpu)
            assert part.memory_mib <= view.ledger.free_mib(where)
            assert part.slices <= view.ledger.free_slices(where)
