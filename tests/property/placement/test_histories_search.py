# SPDX-License-Identifier: Apache-2.0
"""The search is tested too: it finds each planted mistake, and by that mistake alone."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from tests.property.placement.decisions import PRODUCT, Decisions
from tests.property.placement.histories import (
    LEAST_STEPS,
    MOST_STEPS,
    SCENE_BYTES,
    STEP_BYTES,
    History,
    play,
)
from tests.property.placement.mistakes import MISTAKES

MOST_HISTORIES: Final = 1000
SEED: Final = 6


def drawn(number: int) -> History:
    """Return a history of the same kind that hypothesis draws, the same for every mistake."""
    chance = Random(SEED * 1_000_003 + number)
    steps = [chance.randbytes(STEP_BYTES) for _ in range(chance.randint(LEAST_STEPS, MOST_STEPS))]
    return History(chance.randbytes(SCENE_BYTES), steps)


def first_found(decisions: Decisions) -> int | None:
    """Return the number of the first history that fails with these decisions only."""
    for number in range(MOST_HISTORIES):
        history = drawn(number)
        if play(history, decisions).violation and not play(history, PRODUCT).violation:
            return number
    return None


@pytest.mark.timeout(300)  # two are found after some hundred histories
@pytest.mark.parametrize("mistake", [pytest.param(name, id=name) for name in MISTAKES])
def test_a_planted_mistake_is_found(mistake: str) -> None:
    """Within 1 000 histories; the number is printed."""
    found = first_found(MISTAKES[mistake])
    assert found is not None, f"1 000 histories hold with {mistake}"
    print(f"{mistake}: found in history {found + 1}")  # noqa: T201 - shown by pytest -rP


def test_a_history_is_played_the_same_way_each_time() -> None:
    """A seed is worth printing only if it tells the same story again."""
    assert play(drawn(3), PRODUCT).story() == play(drawn(3), PRODUCT).story()
