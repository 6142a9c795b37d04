# SPDX-License-Identifier: Apache-2.0
"""Quantities are read exactly, or refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuslice.contract import quantity

NO_DECIMALS = [
    "",
    " ",
    " 0.5",
    "0.5 ",
    "0.5\n",
    "-0.5",
    "1e-1",
    "0x1p-1",
    "0_5",
    "NaN",
    "inf",
    "0,5",
    "50%",
    ".",
    "+",
    "++1",
    "0.5.1",
    "\uff10.5",
    "\u0660.\u0665",
    "9" * 41,
]


@pytest.mark.parametrize("text", ["0.5", ".5", "+0.5", "0.50", "00.5", "0.5000"])
def test_all_spellings_of_a_half_are_a_half(text: str) -> None:
    assert quantity.parse_decimal(text) == Fraction(1, 2)


@pytest.mark.parametrize("text", NO_DECIMALS)
def test_what_is_no_plain_decimal_is_refused(text: str) -> None:
    with pytest.raises(quantity.QuantityError):
        quantity.parse_decimal(text)


@pytest.mark.parametrize(
    ("text", "memory_mib"),
    [
        ("4000", 4000),
        ("+4000", 4000),
        ("4Gi", 4096),
        ("4000Mi", 4000),
        ("1.5Gi", 1536),
        ("1024Ki", 1),
        ("1Ti", 2**20),
        pytest.param("4G", 3815, id="4e9 bytes are 3814.7 MiB: rounded up, a share is a need"),
        pytest.param("1k", 1, id="1000 bytes still need one MiB"),
    ],
)
def test_memory_is_read_as_mib(text: str, memory_mib: int) -> None:
    assert quantity.parse_memory_mib(text) == memory_mib


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "0Gi",
        "-1",
        "-1Gi",
        "1.2",
        "4000.0",
        "4gi",
        "4GiB",
        "4 Gi",
        "Gi",
        "4m",
        "1e3",
        "",
        "4Kk",
    ],
)
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(quantity.QuantityError):
        quantity.parse_memory_mib(text)


@pytest.mark.parametrize(("text", "count"), [("50", 50), ("0", 0), ("2k", 2000), ("2000m", 2)])
def test_counts_are_read_as_the_api_server_writes_them(text: str, count: int) -> None:
    assert quantity.parse_count(text) == count


@pytest.mark.parametrize("text", ["2m", "0.5", "x", "-1"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(quantity.QuantityError):
        quantity.parse_count(text)


def test_a_third_has_no_decimal() -> None:
    with pytest.raises(quantity.QuantityError, match="no decimal"):
        quantity.format_decimal(Fraction(1, 3))
