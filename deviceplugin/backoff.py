# SPDX-License-Identifier: Apache-2.0
"""Waiting longer after each failure in a row."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """A time before which something isn't tried again; the pause doubles with each failure."""

    def __init__(
        self, clock: Callable[[], float], *, first_seconds: float, most_seconds: float
    ) -> None:
        """Be due at once.

        Args:
            clock: seconds, monotonic.
            first_seconds: the pause after the first failure.
            most_seconds: the longest pause.
        """
        self._clock = clock
        self._first = first_seconds
        self._most = most_seconds
        self.reset()

    def reset(self) -> None:
        """Forget the failures: due at once."""
        self.pause_seconds = self._first
        self._due = self._clock()

    def failed(self) -> None:
        """Note a failure."""
        self._due = self._clock() + self.pause_seconds
        self.pause_seconds = min(self.pause_seconds * 2, self._most)

    @property
    def is_due(self) -> bool:
        """Whether the pause is over."""
        return self._clock() >= self._due
