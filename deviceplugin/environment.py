# SPDX-License-Identifier: Apache-2.0
"""What a container learns of its share through its environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deviceplugin.allocation import Grant
from gpuslice.contract import names
from gpuslice.contract.ledger import Gpu
from gpuslice.contract.shares import Share


def environment(grant: Grant, gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the environment of the container that gets a grant.

    Args:
        grant: its tokens and what they mean.
        gpus: the grant's GPUs, in the order of its shape.
    """
    uuids = ",".join(part.gpu for part in grant.shape)
    memories = [str(part.memory_mib) for part in grant.shape]
    portion = portion_text(grant.share, gpus)
    return {
        names.ENV_VISIBLE_DEVICES: uuids,
        names.ENV_NUM_OF_GPUS: portion,
        names.ENV_GPU_PORTION: portion,
        names.ENV_SHARE: str(grant.share),
        names.ENV_GPU: uuids,
        names.ENV_MEMORY_LIMIT_MIB: memories[0] if len(set(memories)) == 1 else ",".join(memories),
        names.ENV_SLICES: str(sum(part.slices for part in grant.shape)),
    }


def portion_text(share: Share, gpus: Sequence[Gpu]) -> str:
    """Return the portion of one GPU as KAI Scheduler writes it: two decimals, per device.

    KAI reads the fraction as a double and prints it with ``%.2f``; programs compare such texts,
    so ties fall here where they fall there. For memory it is ceil(100 * m / M) / 100, on the
    smallest of the GPUs.
    """
    if share.fraction is not None:
        return f"{float(share.fraction):.2f}"
    assert share.memory_mib is not None
    hundredths = max(-(-100 * share.memory_mib // gpu.memory_mib) for gpu in gpus)
    return f"{hundredths // 100}.{hundredths % 100:02d}"


HINT_NAMES: Final = ("jax", "tensorflow", "pytorch")
"""The first two take all of a GPU's memory unless they are told otherwise."""


def hints(grant: Grant, gpus: Sequence[Gpu], frameworks: Sequence[str]) -> dict[str, str]:
    """Return what keeps frameworks within the share, for those that heed the environment.

    Hints, no limits: time slicing has none.
    """
    said: dict[str, str] = {}
    if "jax" in frameworks:
        # Rounded down, of the memory that NVML's total less the driver's reserve leaves.
        hundredths = min(
            100 * part.memory_mib // max(1, gpu.memory_mib)
            for part, gpu in zip(grant.shape, gpus, strict=True)
        )
        said["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{hundredths // 100}.{hundredths % 100:02d}"
    if "tensorflow" in frameworks:
        said["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    if "pytorch" in frameworks:
        said["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return said
