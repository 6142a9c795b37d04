# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities as exact numbers.

Only what gpuslice reads: plain decimals with an optional suffix. Exponents (``1e3``) are valid
Kubernetes but never what a person means by a share of a GPU, so they are refused here.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction
from typing import Final

MIB: Final = 2**20
MAX_CHARACTERS: Final = 40
"""Longer texts are refused unread: nobody writes them, and big numbers are slow to parse."""

_DECIMAL: Final = re.compile(r"\+?([0-9]*)(?:\.([0-9]*))?", re.ASCII)
_SUFFIXES: Final = {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
}


class QuantityError(ValueError):
    """A text is no quantity of the kind that was asked for."""


def parse_decimal(text: str) -> Fraction:
    """Return the exact value of a plain decimal: ``0.5``, ``.5``, ``+0.5``, ``0.50``, ``3``.

    Raises:
        QuantityError: for anything else: empty, spaces, a minus, exponents, hex, underscores,
            ``NaN``, a decimal comma, digits of other scripts, more than 40 characters.
    """
    if len(text) > MAX_CHARACTERS:
        raise QuantityError(f"has {len(text)} characters, more than {MAX_CHARACTERS}")
    match = _DECIMAL.fullmatch(text)
    whole, decimals = (match.group(1), match.group(2) or "") if match else ("", "")
    if not match or not whole + decimals:
        raise QuantityError("is not a plain decimal number")
    return Fraction(int(whole + decimals), 10 ** len(decimals))


def parse_bytes(text: str) -> Fraction:
    """Return the exact bytes of a memory quantity such as ``4Gi``, ``4000Mi``, ``1.5G`` or ``512``.

    Raises:
        QuantityError: where the number or the suffix is none of Kubernetes'.
    """
    number = text.rstrip("KMGTPEik")
    suffix = text[len(number) :]
    if suffix and suffix not in _SUFFIXES:
        raise QuantityError(f"has the unknown unit {suffix!r}")
    return parse_decimal(number) * _SUFFIXES.get(suffix, 1)


def parse_memory_mib(text: str) -> int:
    """Return the MiB that a user's memory text asks for.

    A bare integer is MiB, as in KAI's ``gpu-memory``; a text with a suffix is a Kubernetes
    quantity. A quantity that is no whole number of MiB is rounded up: a share is a need, and
    what was asked for must be there.

    Raises:
        QuantityError: where it is neither, or not above zero.
    """
    if text.isascii() and text.removeprefix("+").isdigit():
        memory_mib = int(parse_decimal(text))
    elif text and text[-1] in "KMGTPEik":
        memory_mib = -(-parse_bytes(text) // MIB)
    else:
        parse_decimal(text)  # says what is wrong with it, if it is no number at all
        raise QuantityError("is neither a whole number of MiB nor a quantity with a unit")
    if memory_mib <= 0:
        raise QuantityError("is not above zero")
    return memory_mib


def parse_count(text: str) -> int:
    """Return a resource count as the API server stores it: ``0``, ``50``, ``2k``, ``2000m``.

    Raises:
        QuantityError: where it is no whole number.
    """
    thousandths = text.endswith("m")
    amount = parse_bytes(text.removesuffix("m")) / (1000 if thousandths else 1)
    if amount.denominator != 1:
        raise QuantityError("is not a whole number")
    return amount.numerator


@functools.lru_cache(maxsize=1024)
def format_decimal(value: Fraction) -> str:
    """Return the shortest decimal that is exactly `value`; e.g. ``0.5``, ``1``, ``0.125``.

    Raises:
        QuantityError: where there is none of at most 40 places (a third, say).
    """
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
        if digits > MAX_CHARACTERS:
            raise QuantityError(f"{value} has no decimal of at most {MAX_CHARACTERS} places")
    sign = "-" if value < 0 else ""
    text = str(abs(value * 10**digits)).rjust(digits + 1, "0")
    return f"{sign}{text[:-digits]}.{text[-digits:]}" if digits else f"{sign}{text}"
