# SPDX-License-Identifier: Apache-2.0
"""Tokens: the advertised device ids, ``<gpu uuid>::<n>``.

They are stable for ever: kubelet remembers them over restarts, and refuses a running pod's
re-admission when one of its tokens is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NewType

from gpuslice.contract.names import GpuUuid

Token = NewType("Token", str)
"""One advertised device id; e.g. ``GPU-5f1c7d8e-...::17``."""

SEPARATOR: Final = "::"
_TOKEN: Final = re.compile(r"(.+)::(0|[1-9][0-9]{0,8})", re.ASCII)


class TokenError(ValueError):
    """A text is no token."""


def token(gpu: GpuUuid, number: int) -> Token:
    """Return the token of that number (0 to N-1) on a GPU."""
    return Token(f"{gpu}{SEPARATOR}{number}")


def parse_token(text: str) -> tuple[GpuUuid, int]:
    """Return a token's GPU and number.

    Raises:
        TokenError: where the text is none.
    """
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise TokenError(f"{text!r} is no token such as GPU-5f1c7d8e::17")
    return GpuUuid(match.group(1)), int(match.group(2))


def tokens_of_gpu(gpu: GpuUuid, slices: int) -> tuple[Token, ...]:
    """Return all tokens of a GPU, in the order of their numbers."""
    return tuple(token(gpu, number) for number in range(slices))


def count_by_gpu(tokens: Iterable[str]) -> dict[GpuUuid, int]:
    """Return how many of the tokens each GPU has, in the order of first sight.

    Raises:
        TokenError: where one of them is none.
    """
    counts: dict[GpuUuid, int] = {}
    for each in tokens:
        gpu, _ = parse_token(each)
        counts[gpu] = counts.get(gpu, 0) + 1
    return counts
