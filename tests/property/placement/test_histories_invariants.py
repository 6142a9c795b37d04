# SPDX-License-Identifier: Apache-2.0
"""The five invariants of placement hold in generated histories of delays, losses and deaths.

``GPUSLICE_HISTORIES`` says how many are played, ``GPUSLICE_HISTORY_SEED`` which; ``make histories``
plays 10 000 with a new seed, which it prints. The same two numbers play the same histories again.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

import pytest
from hypothesis import HealthCheck, given, note, seed, settings

from tests.property.placement.decisions import PRODUCT
from tests.property.placement.histories import History, histories, play

HISTORIES: Final = int(os.environ.get("GPUSLICE_HISTORIES", "150"))
SEED: Final = int(os.environ.get("GPUSLICE_HISTORY_SEED", "6"))
BATCH: Final = 250
"""Histories of one test: batches are played side by side, and each has a seed of its own."""
_STARTS: Final = range(0, HISTORIES, BATCH)


@pytest.mark.timeout(900)  # a batch takes 10 s; finding the shortest violation takes minutes
@pytest.mark.parametrize("start", _STARTS, ids=lambda start: f"from-{start}-seed-{SEED}")
def test_the_invariants_hold_in_every_history(start: int) -> None:
    """A failure prints its seed, and the shortest history that fails."""
    played: Counter[str] = Counter()

    @seed(SEED * 1_000_003 + start)
    @settings(
        max_examples=min(BATCH, HISTORIES - start),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(histories())
    def hold(history: History) -> None:
        ending = play(history, PRODUCT)
        played["histories"] += 1
        played["steps"] += len(history.steps)
        played["pods run"] += ending.pods_run
        played["exceptions"] += len(ending.world.exceptions)
        if ending.violation is not None:
            note(f"GPUSLICE_HISTORIES={HISTORIES} GPUSLICE_HISTORY_SEED={SEED}\n{ending.story()}")
            raise ending.violation

    hold()
    print(f"seed {SEED}, from {start}: {dict(played)}")  # noqa: T201 - shown by pytest -rP
    assert played["steps"] >= 50 * played["histories"]
    assert played["pods run"] > 3 * played["histories"], "hardly a pod ran: nothing was shown"
