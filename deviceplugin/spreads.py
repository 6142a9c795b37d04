# SPDX-License-Identifier: Apache-2.0
"""Spreads: how many tokens of each GPU a container has. What a claim and a set of tokens share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpuslice.contract.ledger import Ledger, Part
from gpuslice.contract.names import GpuUuid
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import Share
from gpuslice.contract.tokens import SEPARATOR

Spread = tuple[tuple[GpuUuid, int], ...]
"""How many tokens of which GPU, in the order of the GPUs' uuids."""


def spread_of(shape: Iterable[Part]) -> Spread:
    """Return a shape's tokens per GPU."""
    return tuple(sorted((part.gpu, part.slices) for part in shape))


def spread_of_tokens(ids: Iterable[str]) -> Spread:
    """Return how many of the ids each GPU has; what is no token counts for a GPU without a name."""
    counts = Counter(GpuUuid(each.rpartition(SEPARATOR)[0]) for each in ids)
    return tuple(sorted(counts.items()))


def shape_from(ledger: Ledger, share: Share, spread: Spread) -> tuple[Part, ...]:
    """Return what tokens of these GPUs mean for a share, in the order of the GPUs' index.

    Raises:
        LedgerError: where the node has no such GPU.
    """
    slices = dict(spread)
    gpus = sorted(map(ledger.gpu, slices), key=lambda gpu: (gpu.index, gpu.uuid))
    return tuple(Demand(share=share, slices=slices[gpu.uuid]).part_on(gpu) for gpu in gpus)


def named(spread: Spread) -> str:
    """Return a spread for people; e.g. ``GPU-5f1c7d8e (50)``."""
    return ", ".join(f"{gpu} ({count})" for gpu, count in spread)
