# SPDX-License-Identifier: Apache-2.0
"""Slices: the coarse, integer currency that the stock scheduler counts.

They are rounded down, and at least one, so that they never stop what fits exactly. MiB decide.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpuslice.contract.shares import Share, ShareError


class SliceBy(enum.StrEnum):
    """What one slice is."""

    FRACTION = "fraction"
    """1/N of a GPU, whatever its memory."""
    MEMORY = "memory"
    """A fixed amount of memory; N differs between GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRule:
    """How GPUs are cut: one rule for the whole cluster, read by both halves."""

    slice_by: SliceBy = SliceBy.FRACTION
    slices_per_gpu: int = 100
    """N where `slice_by` is fraction: a number of factors 2 and 5, so that 1/N is a decimal."""
    slice_memory_mib: int = 1024
    """One slice where `slice_by` is memory, in MiB."""

    def __post_init__(self) -> None:
        rest = self.slices_per_gpu
        for factor in (2, 5):
            while rest > 0 and rest % factor == 0:
                rest //= factor
        if rest != 1:
            raise ValueError(
                f"slicesPerGpu: {self.slices_per_gpu} is not allowed: a number of factors 2 and 5, "
                "such as 10, 50, 100 or 200"
            )
        if self.slice_memory_mib <= 0:
            raise ValueError(
                f"sliceMemoryMiB: {self.slice_memory_mib} is not above zero; e.g. 1024"
            )

    def slices_of_gpu(self, memory_mib: int) -> int:
        """Return N, the number of tokens of a GPU with that much memory for sale."""
        if self.slice_by is SliceBy.FRACTION:
            return self.slices_per_gpu
        return memory_mib // self.slice_memory_mib

    def slices_of_share(self, share: Share, kinds_mib: Sequence[int]) -> int:
        """Return k, the slices of `share` on each of its devices.

        Args:
            share: what the pod asks for.
            kinds_mib: the memory of each kind of GPU in the cluster, at least one. It matters only
                where share and slice are of different kinds, and then the least k counts, so that
                slices never stop a share from a GPU on which it fits.

        Returns:
            At least 1; rounded down.
        """
        if share.fraction is not None and self.slice_by is SliceBy.FRACTION:
            return max(1, share.fraction * self.slices_per_gpu // 1)
        if share.memory_mib is not None and self.slice_by is SliceBy.MEMORY:
            return max(1, share.memory_mib // self.slice_memory_mib)
        return min(max(1, self._slices_on(share, memory_mib)) for memory_mib in kinds_mib)

    def _slices_on(self, share: Share, gpu_memory_mib: int) -> int:
        share_mib = share.memory_mib_on(gpu_memory_mib)
        if self.slice_by is SliceBy.MEMORY:
            return share_mib // self.slice_memory_mib
        # A share larger than this GPU never lands on it, so it counts as all of it.
        return min(share_mib * self.slices_per_gpu // gpu_memory_mib, self.slices_per_gpu)

    def share_of_slices(self, slices: int, kinds_mib: Sequence[int]) -> Share:
        """Return the share that `slices` slices asked for by hand mean.

        Raises:
            ShareError: where that is zero, or more than one GPU has.
        """
        most = max(self.slices_of_gpu(memory_mib) for memory_mib in kinds_mib)
        if not 0 < slices <= most:
            raise ShareError(f"{slices} slices is not between 1 and {most}, the slices of one GPU")
        if self.slice_by is SliceBy.FRACTION:
            return Share(fraction=Fraction(slices, self.slices_per_gpu))
        return Share(memory_mib=slices * self.slice_memory_mib)

    def smallest_fraction(self, kinds_mib: Sequence[int]) -> Fraction:
        """Return 1/N of the GPU with most slices: a smaller share would take more than it gets."""
        return Fraction(1, max(1, *(self.slices_of_gpu(memory_mib) for memory_mib in kinds_mib)))
