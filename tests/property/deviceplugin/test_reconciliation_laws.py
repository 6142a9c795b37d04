# SPDX-License-Identifier: Apache-2.0
"""Whatever is seen, the ledger never promises twice, and ends where the tokens are."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin import exchange, publication
from deviceplugin.reconciliation import Sight, Verdict, reconcile
from deviceplugin.spreads import spread_of, spread_of_tokens
from gpuslice.contract.ledger import ClaimState, Ledger, LedgerError
from gpuslice.contract.names import SLICE_RESOURCE, PodUid, ResourceName
from tests.unit.deviceplugin.claims import all_tokens, claim, gpu, ledger, pod, tokens, uid

GPUS = tuple(gpu(index, slices=10, memory_mib=1000 + 100 * index) for index in range(3))
EVERY = sorted(all_tokens(*GPUS))
SHARES = {"0.3": 3, "0.5": 5, "0.6": 6, "2x0.3": 3, "600mi": 5}
NAMES = [str(number) for number in range(6)]


def devices(share: str) -> int:
    return 2 if share.startswith("2x") else 1


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    made = ledger(GPUS).with_serving(serving=draw(st.booleans()))
    for name in NAMES:
        if draw(st.booleans()):
            share = draw(st.sampled_from(sorted(SHARES)))
            on = draw(st.permutations(GPUS))[: devices(share)]
            gone = draw(st.integers(0, 9)) == 0
            state = ClaimState.LEAVING if gone else draw(st.sampled_from(list(ClaimState)))
            new = claim(name, share, SHARES[share], *on, state=state, pod_gone=gone)
            try:
                made = made.with_claim(new)
            except LedgerError:
                continue
    return made


@st.composite
def situations(draw: st.DrawFn) -> tuple[Ledger, Sight]:
    """Anything at all: also what can't happen, such as tokens that two pods have."""
    made = draw(ledgers())
    pods: dict[PodUid, Any] = {}
    given_to: dict[PodUid, frozenset[str]] = {}
    for name in NAMES:
        known = made.claim_of(uid(name))
        share = str(known.share) if known else draw(st.sampled_from(sorted(SHARES)))
        total = SHARES[share] * devices(share)
        if draw(st.booleans()):
            phase = draw(st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]))
            pods[uid(name)] = pod(name, share, total, phase=phase, deleting=draw(st.booleans()))
        if draw(st.booleans()):
            picked = st.lists(st.sampled_from(EVERY), min_size=total, max_size=total, unique=True)
            given_to[uid(name)] = frozenset(draw(picked))
    some = st.frozensets(st.sampled_from([uid(name) for name in NAMES]))
    sight = Sight(
        pods=pods,
        tokens=given_to,
        released=draw(some),
        ended=draw(some),
        verdicts=draw(
            st.dictionaries(st.sampled_from([uid("0"), uid("1")]), st.sampled_from(Verdict))
        ),
        buried=draw(some),
    )
    return made, sight


@given(situations())
def test_nothing_is_ever_promised_twice(situation: tuple[Ledger, Sight]) -> None:
    made, sight = situation
    assert reconcile(made, sight, SLICE_RESOURCE).ledger.overclaimed() == ()


@given(situations())
def test_a_second_pass_changes_nothing_more(situation: tuple[Ledger, Sight]) -> None:
    made, sight = situation
    first = reconcile(made, sight, SLICE_RESOURCE)
    second = reconcile(first.ledger, sight, SLICE_RESOURCE)
    assert second.ledger == first.ledger


@given(situations())
def test_no_pod_that_lives_here_loses_its_claim(situation: tuple[Ledger, Sight]) -> None:
    made, sight = situation
    after = reconcile(made, sight, SLICE_RESOURCE).ledger
    for each in made.claims:
        there = sight.pods.get(each.pod.uid)
        lives = there is not None and there["status"]["phase"] in ("Pending", "Running")
        if lives and each.pod.uid not in sight.ended:
            assert after.claim_of(each.pod.uid) is not None


@given(st.data())
def test_equal_claims_end_where_their_pods_tokens_are_in_whatever_order_kubelet_served(
    data: st.DataObject,
) -> None:
    """Over chains of any length, and while some pods have no tokens yet."""
    share = data.draw(st.sampled_from(["0.3", "2x0.3"]))
    made = ledger(GPUS)
    for name in NAMES:
        on = data.draw(st.permutations(GPUS))[: devices(share)]
        try:
            made = made.with_claim(claim(name, share, 3, *on))
        except LedgerError:
            continue
    free = {each.uuid: list(range(10)) for each in GPUS}
    order = data.draw(st.permutations([each.pod.uid for each in made.claims]))
    served = order[: data.draw(st.integers(0, len(order)))]
    given_to = {}
    for pod_uid, served_as in zip(served, made.claims, strict=False):
        got = frozenset[str]()
        for part in served_as.shape:
            where = made.gpu(part.gpu)
            numbers, free[part.gpu] = free[part.gpu][:3], free[part.gpu][3:]
            got |= tokens(where, range(numbers[0], numbers[-1] + 1))
        given_to[pod_uid] = got
    after, repairs = exchange.realign(made, given_to)
    for pod_uid, got in given_to.items():
        found = after.claim_of(pod_uid)
        assert found is not None
        assert spread_of(found.shape) == spread_of_tokens(got)
    shapes = [Counter(spread_of(each.shape) for each in side.claims) for side in (made, after)]
    assert shapes[0] == shapes[1]
    assert all(isinstance(each, exchange.Exchanged) for each in repairs)
    assert len(repairs) <= len(given_to)


fits = st.dictionaries(
    st.sampled_from([ResourceName(f"gpuslice.dev/fit-{share}") for share in SHARES]),
    st.integers(0, 20),
)


@given(fits, fits, fits, st.text("0123456789", min_size=1))
def test_a_patched_node_needs_no_patch_and_both_its_maps_agree(
    capacity: dict[ResourceName, int],
    allocatable: dict[ResourceName, int],
    wanted: dict[ResourceName, int],
    version: str,
) -> None:
    node: dict[str, Any] = {
        "metadata": {"name": "node-a"},
        "status": {
            "capacity": {"cpu": "4"} | {key: str(value) for key, value in capacity.items()},
            "allocatable": {"cpu": "3"} | {key: str(value) for key, value in allocatable.items()},
        },
    }

    def patch() -> Any:
        return publication.node_patch(
            node, fits_wanted=wanted, labels_wanted={"x": None}, ledger_version=version
        )

    merge(node, patch() or {})
    assert patch() is None
    shown = [
        {key: value for key, value in node["status"][kind].items() if key != "cpu"}
        for kind in ("capacity", "allocatable")
    ]
    assert shown == [{key: str(value) for key, value in wanted.items()}] * 2


def merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """Apply a merge patch: RFC 7386."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
