# SPDX-License-Identifier: Apache-2.0
"""Promise 1: two half-GPU pods on each GPU, the one too many waits, and everybody says why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from gpuslice.sim.observation import Observation, name, unscheduled_words
from gpuslice.sim.promises import safety

TITLE: Final = "five halves on two GPUs: two on each, the fifth waits and it is said why"


def faults(seen: Observation, explanation: str) -> Iterator[str]:
    """Yield what is wrong.

    Args:
        seen: two nodes with one GPU each, and the five half-GPU pods.
        explanation: what `gpuslice explain pod` says of the one that waits.
    """
    running, waiting = seen.running(), safety.waiting(seen)
    if (len(running), len(waiting)) != (4, 1):
        yield f"{len(running)} pods run and {len(waiting)} wait; right would be 4 and 1"
    users = Counter(gpu for pod in running for gpu in seen.gpus_of(pod))
    for gpu in seen.gpus:
        if users[gpu.uuid] != 2:
            yield f"GPU {gpu.uuid} of node {gpu.node} has {users[gpu.uuid]} pods, not 2"
    for pod in waiting:
        if "Insufficient gpuslice.dev/fit-0.5" not in (words := unscheduled_words(pod)):
            yield f"the scheduler doesn't name the missing fit of {name(pod)}; it says: {words!r}"
        for node in sorted({gpu.node for gpu in seen.gpus}):
            if not any(node in line and "0 MiB" in line for line in explanation.splitlines()):
                yield f"gpuslice explain doesn't say that nothing is free on {node}: {explanation}"
