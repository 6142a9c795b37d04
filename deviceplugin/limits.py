# SPDX-License-Identifier: Apache-2.0
"""The share as numbers that CUDA's multi-process service and HAMi-core hold programs to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from deviceplugin.allocation import Grant
from deviceplugin.contents import Contents, InjectionError, Mount
from gpuslice.contract.ledger import Gpu
from gpuslice.contract.shares import Share

MPS_PIPES: Final = "/run/gpuslice/mps"
"""In the container."""
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - where clients and daemon meet, by NVIDIA's rule
HAMI_LIBRARY: Final = "/usr/local/gpuslice/libvgpu.so"
"""In the container."""


def percentage(share: Share, gpu: Gpu) -> int:
    """Return a share of a GPU in whole percent: floor(100 * share), 1 at least.

    Rounded down, so that shares that fit together never ask for more than all of it.
    """
    if share.fraction is not None:
        return max(1, math.floor(100 * share.fraction))
    assert share.memory_mib is not None
    return max(1, 100 * share.memory_mib // gpu.memory_mib)


def mps(
    grant: Grant,
    gpus: Sequence[Gpu],
    *,
    pipes: str,
    shared_memory: str,
    memory_limit: bool = True,
    thread_limit: bool = True,
) -> Contents:
    """Return what makes a container's programs clients of its GPU's control daemon.

    Args:
        grant: of one GPU.
        gpus: that GPU.
        pipes: the daemon's pipe folder on the node.
        shared_memory: the daemon's /dev/shm on the node.
        memory_limit: whether each process is held to the share's memory.
        thread_limit: likewise to its cores.

    Raises:
        InjectionError: for several GPUs: a program has one daemon, and each daemon one GPU.
    """
    if len(gpus) != 1:
        raise InjectionError(
            f"a share of {len(gpus)} GPUs can't be shared by MPS, which has a daemon for each: ask "
            "for one GPU, or set another mode for these GPUs"
        )
    (part,), (gpu,) = grant.shape, gpus
    said = {"CUDA_MPS_PIPE_DIRECTORY": MPS_PIPES}
    if memory_limit:
        # By the number that the GPU has inside, where it is the only one.
        said["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={part.memory_mib}M"
    if thread_limit:
        said["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage(grant.share, gpu))
    return Contents(
        environment=said,
        mounts=(
            Mount(host=pipes, container=MPS_PIPES, read_only=False),
            Mount(host=shared_memory, container=SHARED_MEMORY, read_only=False),
        ),
    )


def hami_core(
    grant: Grant, gpus: Sequence[Gpu], *, library: str, core_limit: bool = True
) -> Contents:
    """Return what holds a container's programs to its share by HAMi-core's library.

    Source: github.com/Project-HAMi/HAMi-core, README: limits by device number, or for all alike.
    """
    said = {"LD_PRELOAD": HAMI_LIBRARY}
    for number, part in enumerate(grant.shape):
        said[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] = f"{part.memory_mib}m"
    memories = {part.memory_mib for part in grant.shape}
    said["CUDA_DEVICE_MEMORY_LIMIT"] = f"{min(memories)}m"
    if core_limit:
        least = min(percentage(grant.share, gpu) for gpu in gpus)
        said["CUDA_DEVICE_SM_LIMIT"] = str(least)
    return Contents(environment=said, mounts=(Mount(host=library, container=HAMI_LIBRARY),))
