# SPDX-License-Identifier: Apache-2.0
"""What a node of some GPUs publishes before any pod is on it. Pure: the agent's own arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuslice.contract import fits, names
from gpuslice.contract.annotations import Bounds, RequestError, read_request
from gpuslice.contract.ledger import Gpu, Ledger
from gpuslice.contract.names import GpuUuid, NodeName, ResourceName
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import Share, ShareError, parse_share
from gpuslice.contract.slices import SliceRule

EXAMPLES: Final = "e.g. 0.5, 50%, 4000Mi, 2x0.5"


def read_share(text: str) -> Share:
    """Return the share that a person writes, in a normal form or as in an annotation.

    Raises:
        ShareError: with what would be right.
    """
    try:
        return parse_share(text)
    except ShareError:
        devices, mark, one = text.partition("x")
        amount = one if mark else text
        key = names.MEMORY if amount[-1:].isalpha() else names.FRACTION
        annotations = {key: amount} | ({names.DEVICES: devices} if mark else {})
        try:
            request = read_request(annotations, Bounds())
        except RequestError as error:
            why = "; ".join(f"{each.problem}" for each in error.errors)
            raise ShareError(f"--share {text}: {why}; {EXAMPLES}") from error
        assert request is not None
        return request.share


def ledger(gpus: int, memory_mib: int, rule: SliceRule) -> Ledger:
    """Return the ledger of an empty node whose GPUs are all alike.

    Args:
        gpus: how many.
        memory_mib: of each, for sale: NVML's total less the driver's reserve.
        rule: how GPUs are cut.
    """
    slices = rule.slices_of_gpu(memory_mib)
    return Ledger(
        node=NodeName("empty"),
        gpus=tuple(
            Gpu(
                uuid=GpuUuid(f"GPU-{index}"),
                index=index,
                product="",
                memory_mib=memory_mib,
                slices=slices,
            )
            for index in range(gpus)
        ),
    )


def resources(
    empty: Ledger, shares: Sequence[Share], rule: SliceRule, slice_resource: str
) -> dict[ResourceName, int]:
    """Return the resources of an empty node: its slices, then a fit for each share."""
    kinds = sorted({gpu.memory_mib for gpu in empty.gpus})
    demands = [
        Demand(share=share, slices=rule.slices_of_share(share, kinds)) for share in set(shares)
    ]
    slices = sum(gpu.slices for gpu in empty.gpus)
    return {ResourceName(slice_resource): slices, **fits.fits(empty, demands)}
