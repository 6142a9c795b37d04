# SPDX-License-Identifier: Apache-2.0
"""The laws of the contract's arithmetic."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import fits, placement, quantity, tokens
from gpuslice.contract.annotations import Bounds, RequestError, read_request
from gpuslice.contract.ledger import Gpu, Ledger, PodRef
from gpuslice.contract.names import GpuUuid, NodeName, PodUid
from gpuslice.contract.placement import Demand, NoRoom, Policy
from gpuslice.contract.shares import Share, parse_share
from gpuslice.contract.slices import SliceBy, SliceRule

decimals = st.decimals(min_value="0.001", max_value=1, places=3).map(Fraction)
memories = st.integers(min_value=1, max_value=200_000)
gpu_memories = st.integers(min_value=1000, max_value=200_000)
one_gpu_shares = st.one_of(
    decimals.map(lambda fraction: Share(fraction=fraction)),
    memories.map(lambda memory_mib: Share(memory_mib=memory_mib)),
)
rules = st.builds(
    SliceRule,
    slice_by=st.sampled_from(SliceBy),
    slices_per_gpu=st.sampled_from([1, 2, 10, 20, 50, 100, 200, 1000]),
    slice_memory_mib=st.sampled_from([100, 256, 1000, 1024]),
)


def node(gpu_mibs: list[int], rule: SliceRule) -> Ledger:
    return Ledger(
        node=NodeName("node-a"),
        gpus=tuple(
            Gpu(
                uuid=GpuUuid(f"GPU-{index}"),
                index=index,
                product="any",
                memory_mib=memory_mib,
                slices=rule.slices_of_gpu(memory_mib),
            )
            for index, memory_mib in enumerate(gpu_mibs)
        ),
    )


def place(ledger: Ledger, demand: Demand, policy: Policy, uid: str) -> Ledger | None:
    gpus = placement.choose(ledger, demand, policy)
    if isinstance(gpus, NoRoom):
        return None
    pod = PodRef(namespace="ml", name=uid, uid=PodUid(uid))
    claim = placement.claim_on(gpus, demand, pod=pod, container="main", fit=demand.share)
    return ledger.with_claim(claim)


@given(decimals)
def test_a_decimal_and_its_text_are_one(value: Fraction) -> None:
    assert quantity.parse_decimal(quantity.format_decimal(value)) == value


@given(st.integers(min_value=0, max_value=10**12), st.integers(min_value=0, max_value=12))
def test_a_written_decimal_is_the_shortest(digits: int, places: int) -> None:
    text = quantity.format_decimal(Fraction(digits, 10**places))
    assert "." not in text or not text.endswith("0")


@given(one_gpu_shares, st.integers(min_value=1, max_value=64))
def test_a_share_and_its_normal_form_are_one(one: Share, devices: int) -> None:
    share = Share(fraction=one.fraction, memory_mib=one.memory_mib, devices=devices)
    assert parse_share(str(share)) == share


@given(st.text(max_size=50))
def test_any_text_is_a_share_or_an_error_with_the_field(text: str) -> None:
    refused, request = "", None
    try:
        request = read_request({"gpu-fraction": text}, Bounds())
    except RequestError as error:
        refused = str(error)
    if request is None:
        assert refused.startswith('metadata.annotations["gpu-fraction"]: "')
        assert refused.isprintable()
    else:
        assert request.share.fraction is not None
        assert 0 < request.share.fraction <= 1


@given(st.text(alphabet="GPU-0123456789abcdef:", min_size=1), st.integers(0, 10**9 - 1))
def test_a_token_and_its_parts_are_one(uuid: str, number: int) -> None:
    if not uuid.endswith(":"):
        assert tokens.parse_token(tokens.token(GpuUuid(uuid), number)) == (uuid, number)


@given(rules, one_gpu_shares, one_gpu_shares, st.lists(gpu_memories, min_size=1, max_size=4))
def test_a_larger_share_never_costs_fewer_slices(
    rule: SliceRule, one: Share, other: Share, kinds_mib: list[int]
) -> None:
    if one.alike(other):
        small, large = sorted((one, other), key=lambda share: share.amount)
        assert rule.slices_of_share(small, kinds_mib) <= rule.slices_of_share(large, kinds_mib)


@given(rules, one_gpu_shares, st.lists(gpu_memories, min_size=1, max_size=4), gpu_memories)
def test_one_more_kind_of_gpu_never_makes_a_share_dearer(
    rule: SliceRule, share: Share, kinds_mib: list[int], another_mib: int
) -> None:
    alone = rule.slices_of_share(share, kinds_mib)
    assert rule.slices_of_share(share, [*kinds_mib, another_mib]) <= alone


@st.composite
def shares_of_one_gpu(draw: st.DrawFn) -> tuple[SliceRule, int, list[Share]]:
    """Shares that sum to at most 1 of a GPU, none below 1/N of it, of either kind."""
    rule = draw(rules)
    memory_mib = draw(gpu_memories)
    slices = rule.slices_of_gpu(memory_mib)
    least = Fraction(1, max(1, slices))
    left, shares = Fraction(1), []
    while slices and left >= least and len(shares) < 120:
        thousandths = draw(st.integers(-(-least * 10**6 // 1), left * 10**6 // 1))
        fraction = Fraction(thousandths, 10**6)
        as_memory = fraction * memory_mib // 1
        if draw(st.booleans()) and Fraction(as_memory, memory_mib) >= least:
            shares.append(Share(memory_mib=as_memory))
        else:
            shares.append(Share(fraction=fraction))
        left -= fraction
        if draw(st.integers(0, 3)) == 0:
            break
    return rule, memory_mib, shares


@given(shares_of_one_gpu(), st.lists(gpu_memories, max_size=3), st.sampled_from(Policy))
def test_shares_that_sum_to_at_most_one_always_fit_one_gpu(
    case: tuple[SliceRule, int, list[Share]], other_kinds_mib: list[int], policy: Policy
) -> None:
    rule, memory_mib, shares = case
    ledger = node([memory_mib], rule)
    for number, share in enumerate(shares):
        slices = rule.slices_of_share(share, [memory_mib, *other_kinds_mib])
        after = place(ledger, Demand(share=share, slices=slices), policy, str(number))
        assert after is not None, f"{share} does not fit after {shares[:number]}"
        ledger = after
    assert not ledger.overclaimed()


@pytest.mark.parametrize("slice_by", SliceBy)
@pytest.mark.parametrize("memory_mib", [15360, 23034, 81559, 102_400])
@pytest.mark.parametrize(("text", "count"), [("0.125", 8), ("0.333", 3), ("0.1", 10)])
def test_equal_shares_fill_a_gpu(slice_by: SliceBy, memory_mib: int, text: str, count: int) -> None:
    rule = SliceRule(slice_by=slice_by)
    demand = Demand(
        share=parse_share(text), slices=rule.slices_of_share(parse_share(text), [memory_mib])
    )
    assert fits.more(node([memory_mib], rule), demand) == count


def test_a_hundred_hundredths_fill_a_gpu() -> None:
    rule = SliceRule(slices_per_gpu=100)
    demand = Demand(share=parse_share("0.01"), slices=1)
    assert fits.more(node([23034], rule), demand) == 100


@st.composite
def busy_nodes(draw: st.DrawFn) -> tuple[SliceRule, list[int], Ledger]:
    """A node of mixed GPUs on which some shares were placed."""
    rule = draw(rules)
    gpu_mibs = draw(st.lists(gpu_memories, min_size=1, max_size=5))
    ledger = node(gpu_mibs, rule)
    for number in range(draw(st.integers(0, 6))):
        one = draw(one_gpu_shares)
        devices = draw(st.integers(1, 2))
        share = Share(fraction=one.fraction, memory_mib=one.memory_mib, devices=devices)
        demand = Demand(share=share, slices=rule.slices_of_share(share, gpu_mibs))
        ledger = place(ledger, demand, draw(st.sampled_from(Policy)), f"old-{number}") or ledger
    return rule, gpu_mibs, ledger


@given(busy_nodes(), st.integers(50, 1000), st.integers(1, 4), st.sampled_from(Policy))
def test_a_fit_equals_what_greedy_placement_really_places(
    case: tuple[SliceRule, list[int], Ledger], thousandths: int, devices: int, policy: Policy
) -> None:
    rule, gpu_mibs, ledger = case
    share = Share(fraction=Fraction(thousandths, 1000), devices=devices)
    demand = Demand(share=share, slices=rule.slices_of_share(share, gpu_mibs))
    promised = fits.more(ledger, demand)
    for number in itertools.count():
        after = place(ledger, demand, policy, f"new-{number}")
        if after is None:
            break
        ledger = after
        # Conservation: what is claimed and what is still promised never changes in sum.
        assert number + 1 + fits.more(ledger, demand) == promised
    assert number == promised
    assert not ledger.overclaimed()


@given(busy_nodes())
def test_no_ledger_is_ever_overclaimed_and_all_room_adds_up(
    case: tuple[SliceRule, list[int], Ledger],
) -> None:
    _, _, ledger = case
    for gpu in ledger.gpus:
        parts = ledger.parts_on(gpu.uuid)
        assert ledger.free_mib(gpu) + sum(part.memory_mib for part in parts) == gpu.memory_mib
        assert ledger.free_slices(gpu) + sum(part.slices for part in parts) == gpu.slices
    assert not ledger.overclaimed()
    assert fits.empty_gpus(ledger) == sum(ledger.is_empty(gpu) for gpu in ledger.gpus)


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 5))
def test_most_together_is_the_largest_that_the_rule_allows(rooms: list[int], devices: int) -> None:
    def allowed(count: int) -> bool:
        return sum(min(room, count) for room in rooms) >= devices * count

    most = fits.most_together(rooms, devices)
    assert most == max(count for count in range(sum(rooms) + 1) if allowed(count))
