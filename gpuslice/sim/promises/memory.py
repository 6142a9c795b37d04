# SPDX-License-Identifier: Apache-2.0
"""Promise 3: memory shares sit beside a half, exact to the MiB, and the last one waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuslice.contract import names
from gpuslice.sim.observation import Observation, is_bound, name
from gpuslice.sim.promises import safety

TITLE: Final = "memory shares join a half on its GPU, exact to the MiB; the third waits, then runs"
SHARE_MIB: Final = 4000
LEFT_MIB: Final = 3517
"""23034 MiB, less half of it, less two shares of 4000."""


def faults_while_waiting(seen: Observation, fifth: str, explanation: str) -> Iterator[str]:
    """Yield what is wrong while two memory shares run and the third waits.

    Args:
        seen: three nodes with one GPU each, five half-GPU pods and three of 4000 MiB.
        fifth: the name of the half-GPU pod that came to the third node.
        explanation: what `gpuslice explain pod` says of the memory share that waits.
    """
    running = {name(pod) for pod in _memory_pods_running(seen)}
    if fifth not in map(name, seen.running()):
        yield f"pod {fifth} doesn't run, although a third node is there"
    if len(running) != 2:
        yield f"{len(running)} memory shares run ({', '.join(sorted(running))}), not 2"
    waiting = [name(pod) for pod in safety.waiting(seen)]
    if len(waiting) != 1:
        yield f"{len(waiting)} pods wait ({', '.join(waiting)}), not one"
    home = seen.gpus_of(pod) if (pod := seen.pod(fifth)) else ()
    for pod in _memory_pods_running(seen):
        if seen.gpus_of(pod) != home:
            yield f"pod {name(pod)} is on GPU {seen.gpus_of(pod)}, not beside {fifth} on {home}"
    if f"{LEFT_MIB} MiB" not in explanation:
        yield f"gpuslice explain doesn't say that {LEFT_MIB} MiB are the most: {explanation}"
    yield from _inexact(seen)


def faults_at_the_end(seen: Observation) -> Iterator[str]:
    """Yield what is wrong after one half-GPU pod was deleted."""
    running = _memory_pods_running(seen)
    if len(running) != 3:
        yield f"{len(running)} memory shares run after a half-GPU pod was deleted, not 3"
    for pod in safety.waiting(seen):
        yield f"pod {name(pod)} still waits"
    yield from _inexact(seen)


def _memory_pods_running(seen: Observation) -> list[dict[str, object]]:
    return [
        dict(pod)
        for pod in seen.running()
        if names.MEMORY in (pod["metadata"].get("annotations") or {})
    ]


def _inexact(seen: Observation) -> Iterator[str]:
    for pod in _memory_pods_running(seen):
        hand_out = seen.hand_out(pod)
        annotations = seen.pod(name(pod))["metadata"]["annotations"]
        told = annotations.get(names.MEMORY_MIB_ANNOTATION)
        given = None if hand_out is None else hand_out.environment.get(names.ENV_MEMORY_LIMIT_MIB)
        if not is_bound(pod) or (told, given) != (str(SHARE_MIB), str(SHARE_MIB)):
            yield f"pod {name(pod)} has {told} MiB by its annotation, {given} by its environment"
