# SPDX-License-Identifier: Apache-2.0
"""What processes with watches have in common: they hear everything, a part, or lose the thread."""

from __future__ import annotations

from tests.property.placement.apiserver import Cache


class Watching:
    """A process with caches; a dead one hears nothing."""

    is_up = True
    caches: tuple[Cache, ...]

    def hear(self) -> bool:
        """Hear all that there is to hear; return whether there was anything."""
        heard = [cache.hear() for cache in self.caches if self.is_up]
        return any(heard)

    def hear_some(self, choice: int) -> None:
        """Hear one event in some of the caches."""
        for number, cache in enumerate(self.caches):
            if self.is_up and choice >> number & 1:
                cache.hear(1)

    def relist(self) -> None:
        """Lose the watches, and begin anew."""
        for cache in self.caches:
            if self.is_up:
                cache.list()
