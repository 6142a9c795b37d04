# SPDX-License-Identifier: Apache-2.0
"""Laws of arbitration over histories of binds, allocations and ends."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.contract import fits
from gpuslice.contract.ledger import ClaimState, Gpu, Ledger, PodRef
from gpuslice.contract.names import GpuUuid, NodeName, PodUid
from gpuslice.contract.placement import Demand, Policy
from gpuslice.contract.pods import Ask
from gpuslice.contract.shares import parse_share
from gpuslice.contract.slices import SliceBy, SliceRule
from webhook.arbitration import Deny, Grant, Wait, arbitrate

NODE = NodeName("node-a")
shares = st.sampled_from(
    ["0.1", "0.125", "0.333", "0.5", "0.6", "1", "4000mi", "11517mi", "2x0.5", "2x4000mi", "3x0.25"]
)
rules = st.sampled_from(
    [SliceRule(), SliceRule(slices_per_gpu=10), SliceRule(slice_by=SliceBy.MEMORY)]
)
memories = st.lists(st.sampled_from([15360, 23034, 81559]), min_size=1, max_size=4)
steps = st.lists(
    st.tuples(
        st.sampled_from(["bind", "bind", "bind", "hold", "leave", "end", "serving"]),
        shares,
        st.integers(0, 1_000),
    ),
    max_size=50,
)


def build_ledger(gpu_mibs: list[int], rule: SliceRule) -> Ledger:
    return Ledger(
        node=NODE,
        gpus=tuple(
            Gpu(
                uuid=GpuUuid(f"GPU-{index}"),
                index=index,
                product="x",
                memory_mib=memory_mib,
                slices=rule.slices_of_gpu(memory_mib),
            )
            for index, memory_mib in enumerate(gpu_mibs)
        ),
    )


def ask_of(text: str, rule: SliceRule, kinds: list[int]) -> Ask:
    share = parse_share(text)
    demand = Demand(share=share, slices=rule.slices_of_share(share, kinds))
    return Ask(container="c", demand=demand, fit=share)


@settings(max_examples=400, deadline=None)
@given(gpu_mibs=memories, rule=rules, history=steps, policy=st.sampled_from(Policy))
def test_grants_are_exactly_what_the_fits_promise_and_never_too_much(
    gpu_mibs: list[int], rule: SliceRule, history: list[tuple[str, str, int]], policy: Policy
) -> None:
    ledger = build_ledger(gpu_mibs, rule)
    for number, (step, text, pick) in enumerate(history):
        claims = ledger.claims
        chosen = claims[pick % len(claims)] if claims else None
        if step == "bind":
            ledger = _bind(ledger, ask_of(text, rule, gpu_mibs), f"p{number}", policy)
        elif step == "serving":
            ledger = ledger.with_serving(serving=not ledger.serving)
        elif chosen is not None and step == "end":
            ledger = ledger.without([chosen.pod.uid])
        elif chosen is not None:
            state = ClaimState.HELD if step == "hold" else ClaimState.LEAVING
            ledger = ledger.with_state(chosen.pod.uid, state)
        _check(ledger)


def _bind(ledger: Ledger, ask: Ask, uid: str, policy: Policy) -> Ledger:
    pod = PodRef(namespace="d", name=uid, uid=PodUid(uid))
    about: dict[str, Any] = {"node": NODE, "pod": pod, "policy": policy, "others": [ledger]}
    decision = arbitrate(ledger, ask, **about)
    more = fits.more(ledger, ask.demand)
    if isinstance(decision, Grant):
        assert more > 0
        before = fits.claimed(ledger, ask.fit) + more
        after = fits.claimed(decision.ledger, ask.fit) + fits.more(decision.ledger, ask.demand)
        # The pod itself changes nothing of its fit: the scheduler has counted it already.
        assert before == after
        # A bind that comes again is told the same claim, which only counts it.
        again = arbitrate(decision.ledger, ask, **about)
        assert isinstance(again, Grant)
        assert again.claim == dataclasses.replace(decision.claim, binds=decision.claim.binds + 1)
        assert fits.more(again.ledger, ask.demand) == fits.more(decision.ledger, ask.demand)
        return decision.ledger
    if isinstance(decision, Deny):
        assert more == 0
        assert ledger.serving
    else:
        assert isinstance(decision, Wait)
    return ledger


def _check(ledger: Ledger) -> None:
    assert ledger.overclaimed() == ()
    reserved = [claim for claim in ledger.claims if claim.state is ClaimState.RESERVED]
    for total in {claim.total_slices for claim in reserved}:
        assert len({claim.share for claim in reserved if claim.total_slices == total}) == 1
