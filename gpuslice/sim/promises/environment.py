# SPDX-License-Identifier: Apache-2.0
"""Promise 2: each container's environment is right for its pod and its GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuslice.contract import names
from gpuslice.sim.observation import Json, Observation, Wish, name, wish

TITLE: Final = "each container's environment names its own GPU, and its own part of it"


def expected(asked: Wish, share: str, gpu: str, gpu_memory_mib: int, slices: int) -> dict[str, str]:
    """Return the environment that a container with a share of one GPU must have.

    Args:
        asked: what the pod's author wrote.
        share: its normal form; e.g. ``0.5``.
        gpu: the UUID of the GPU on which its tokens really are.
        gpu_memory_mib: that GPU's memory.
        slices: how many tokens it was really handed.
    """
    if asked.fraction is not None:
        hundredths = round(asked.fraction * 100)
    else:
        assert asked.memory_mib is not None
        hundredths = -(-100 * asked.memory_mib // gpu_memory_mib)
    portion = f"{hundredths // 100}.{hundredths % 100:02}"
    return {
        names.ENV_VISIBLE_DEVICES: gpu,
        names.ENV_NUM_OF_GPUS: portion,
        names.ENV_GPU_PORTION: portion,
        names.ENV_SHARE: share,
        names.ENV_GPU: gpu,
        names.ENV_MEMORY_LIMIT_MIB: str(asked.mib_on(gpu_memory_mib)),
        names.ENV_SLICES: str(slices),
    }


def faults(seen: Observation) -> Iterator[str]:
    """Yield what is wrong in the environments of the running pods."""
    sharing = [(pod, asked) for pod in seen.running() if (asked := wish(pod)) is not None]
    if not sharing:
        yield "no sharing pod runs, so there is no environment to look at"
    for pod, asked in sharing:
        yield from _of_pod(seen, pod, asked)


def _of_pod(seen: Observation, pod: Json, asked: Wish) -> Iterator[str]:
    hand_out = seen.hand_out(pod)
    if hand_out is None or len(hand_out.tokens_by_gpu()) != 1:
        yield f"pod {name(pod)} runs without tokens of exactly one GPU"
        return
    [(gpu, slices)] = hand_out.tokens_by_gpu().items()
    share = (
        f"{asked.memory_mib}mi"
        if asked.fraction is None
        else pod["metadata"]["annotations"][names.FRACTION]
    )
    right = expected(asked, share, gpu, seen.memory_mib(gpu), slices)
    for key, value in right.items():
        given = hand_out.environment.get(key)
        if given != value:
            yield f"pod {name(pod)} on GPU {gpu} sees {key}={given}; right would be {value}"
