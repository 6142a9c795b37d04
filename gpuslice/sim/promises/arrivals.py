# SPDX-License-Identifier: Apache-2.0
"""Promise 4: whatever arrives at once on one node, nothing is rejected and nothing overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpuslice.sim.observation import Observation, name
from gpuslice.sim.promises import safety

TITLE: Final = "three big shares at once on two GPUs: none rejected, none overlaps, one waits"


def faults_of_three(seen: Observation, arrived: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong once three pods, no two of which fit one GPU, came to two GPUs."""
    running = [name(pod) for pod in seen.running() if name(pod) in arrived]
    waiting = [name(pod) for pod in safety.waiting(seen) if name(pod) in arrived]
    if (len(running), len(waiting)) != (2, 1):
        yield (
            f"of {', '.join(arrived)}: {len(running)} run and {len(waiting)} wait; "
            "right would be 2 and 1"
        )
    homes = [seen.gpus_of(pod) for pod in seen.named(running)]
    if len(set(homes)) != len(homes):
        yield f"{' and '.join(running)} are on one GPU, which can't hold both"


def faults_of_turn(
    seen: Observation, waited: str, ended: str, freed: tuple[str, ...]
) -> Iterator[str]:
    """Yield what is wrong once a pod has ended: the one that waited must run on its GPU.

    Args:
        seen: the moment after.
        waited: the name of the pod that was Pending.
        ended: the name of the pod that ended.
        freed: the GPUs that it had.
    """
    pod = seen.pod(waited)
    if not pod or waited not in map(name, seen.running()):
        yield f"{ended} has ended, and {waited} doesn't run"
    elif seen.gpus_of(pod) != freed:
        home = ", ".join(seen.gpus_of(pod))
        yield f"{waited} runs on GPU {home}, not on that of {ended}, {', '.join(freed)}"
    if ended in map(name, seen.running()):
        yield f"{ended} should have ended, and runs"
