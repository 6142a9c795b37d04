# SPDX-License-Identifier: Apache-2.0
"""Shares have one text each, and slices are rounded down."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuslice.contract.shares import Share, ShareError, parse_share, share_of_fit
from gpuslice.contract.slices import SliceBy, SliceRule

BY_FRACTION = SliceRule()
BY_MEMORY = SliceRule(slice_by=SliceBy.MEMORY)
L4_MIB, A100_MIB = 23034, 81920


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("0.5", Share(fraction=Fraction(1, 2))),
        ("1", Share(fraction=Fraction(1))),
        ("4000mi", Share(memory_mib=4000)),
        ("2x0.5", Share(fraction=Fraction(1, 2), devices=2)),
        ("3x4000mi", Share(memory_mib=4000, devices=3)),
        ("4x1", Share(fraction=Fraction(1), devices=4)),
    ],
)
def test_a_share_and_its_normal_form_are_one(text: str, share: Share) -> None:
    assert (parse_share(text), str(share)) == (share, text)


@pytest.mark.parametrize(
    "text",
    ["", "0", "0.50", ".5", "1.0", "1.5", "1x0.5", "0x0.5", "x0.5", "mi", "0mi", "04mi", "4000Mi"],
)
def test_any_other_text_is_no_share(text: str) -> None:
    with pytest.raises(ShareError):
        parse_share(text)


def test_a_share_is_either_a_fraction_or_memory() -> None:
    with pytest.raises(ShareError, match="either"):
        Share(fraction=Fraction(1, 2), memory_mib=4000)


@pytest.mark.parametrize(
    ("resource", "share"),
    [
        ("gpuslice.dev/fit-0.5", Share(fraction=Fraction(1, 2))),
        ("gpuslice.dev/fit-x", None),
        ("nvidia.com/gpu-slice", None),
    ],
)
def test_only_our_fits_name_a_share(resource: str, share: Share | None) -> None:
    assert share_of_fit(resource) == share


@pytest.mark.parametrize(
    ("rule", "text", "kinds_mib", "slices"),
    [
        pytest.param(BY_FRACTION, "0.5", [L4_MIB], 50, id="a half"),
        pytest.param(BY_FRACTION, "0.333", [L4_MIB], 33, id="rounded down"),
        pytest.param(BY_FRACTION, "0.125", [L4_MIB], 12, id="eight of them fit"),
        pytest.param(BY_FRACTION, "0.001", [L4_MIB], 1, id="at least one"),
        pytest.param(BY_FRACTION, "2x0.5", [L4_MIB], 50, id="on each device"),
        pytest.param(BY_FRACTION, "4000mi", [L4_MIB], 17, id="memory in slices of a fraction"),
        pytest.param(BY_FRACTION, "4000mi", [L4_MIB, A100_MIB], 4, id="the least over the kinds"),
        pytest.param(BY_FRACTION, "40000mi", [L4_MIB], 100, id="never more than a GPU has"),
        pytest.param(BY_MEMORY, "4000mi", [L4_MIB], 3, id="memory in slices of memory"),
        pytest.param(BY_MEMORY, "0.5", [L4_MIB], 11, id="a fraction in slices of memory"),
        pytest.param(BY_MEMORY, "0.5", [L4_MIB, A100_MIB], 11, id="the least again"),
    ],
)
def test_slices_of_a_share(rule: SliceRule, text: str, kinds_mib: list[int], slices: int) -> None:
    assert rule.slices_of_share(parse_share(text), kinds_mib) == slices


def test_slices_by_hand_mean_a_share() -> None:
    assert str(BY_FRACTION.share_of_slices(25, [L4_MIB])) == "0.25"
    assert str(BY_MEMORY.share_of_slices(4, [L4_MIB])) == "4096mi"


@pytest.mark.parametrize("slices", [0, -1, 101])
def test_more_slices_than_one_gpu_has_are_refused(slices: int) -> None:
    with pytest.raises(ShareError, match="not between 1 and 100"):
        BY_FRACTION.share_of_slices(slices, [L4_MIB])


@pytest.mark.parametrize("slices_per_gpu", [0, -10, 3, 30, 70])
def test_a_number_of_slices_without_finite_decimals_is_refused(slices_per_gpu: int) -> None:
    with pytest.raises(ValueError, match="slicesPerGpu"):
        SliceRule(slices_per_gpu=slices_per_gpu)


def test_the_smallest_fraction_is_one_slice_of_the_largest_gpu() -> None:
    assert BY_FRACTION.smallest_fraction([L4_MIB]) == Fraction(1, 100)
    assert BY_MEMORY.smallest_fraction([L4_MIB, A100_MIB]) == Fraction(1, 80)
