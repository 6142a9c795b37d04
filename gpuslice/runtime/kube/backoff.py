# SPDX-License-Identifier: Apache-2.0
"""How long to wait before trying again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

jitter_of_its_own: Final = random.Random().random  # noqa: S311 - spreads clients, no secret
"""A number in [0, 1), without a part in the state that `random.seed` of a test sets."""


class Backoff:
    """Pauses that double up to a limit, each shortened at random so that clients spread out.

    Args:
        first_seconds: the first pause, at most.
        most_seconds: the longest one.
        jitter: a number in [0, 1).
    """

    def __init__(
        self,
        *,
        first_seconds: float = 0.1,
        most_seconds: float = 10.0,
        jitter: Callable[[], float] = jitter_of_its_own,
    ) -> None:
        self._first_seconds = first_seconds
        self._most_seconds = most_seconds
        self._jitter = jitter
        self._next_seconds = first_seconds

    def pause_seconds(self) -> float:
        """Return the next pause: between half and all of the doubling value."""
        chosen = self._next_seconds
        self._next_seconds = min(self._most_seconds, chosen * 2)
        return chosen * (0.5 + self._jitter() / 2)

    def reset(self) -> None:
        """Begin with the first pause again, after a success."""
        self._next_seconds = self._first_seconds
