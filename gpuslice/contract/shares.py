# SPDX-License-Identifier: Apache-2.0
"""Shares: what a pod asks for.

A share is a fraction of one GPU, or an amount of one GPU's memory, on one or several devices.
Its normal form is one text: ``0.5``, ``4000mi``, ``2x0.5``, ``1``. That text is the pod's label,
the end of its fit's name and the name of its `GpuShare`, so it must be one for each share.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gpuslice.contract import names, quantity

_NORMAL: Final = re.compile(
    r"(?:([1-9][0-9]{0,4})x)?(?:([1-9][0-9]{0,17})mi|([0-9.]{1,40}))", re.ASCII
)


class ShareError(ValueError):
    """A text is no share in its normal form, or its numbers are out of range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a pod asks for: a fraction or an amount of memory, on each of some GPUs."""

    fraction: Fraction | None = None
    """Of one GPU, above 0 and at most 1; e.g. ``Fraction(1, 2)``."""
    memory_mib: int | None = None
    """MiB of one GPU, above 0; e.g. ``4000``."""
    devices: int = 1
    """On how many distinct GPUs of one node, each giving this much."""

    def __post_init__(self) -> None:
        if (self.fraction is None) == (self.memory_mib is None):
            raise ShareError("a share is either a fraction or an amount of memory")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ShareError(f"the fraction {self.fraction} is not in (0, 1]")
        if self.memory_mib is not None and self.memory_mib <= 0:
            raise ShareError(f"{self.memory_mib} MiB is not above zero")
        if self.devices <= 0:
            raise ShareError(f"{self.devices} devices is not above zero")

    def __hash__(self) -> int:
        # Fraction's own hash is a modular power: as slow as the rest of a decision.
        ratio = None if self.fraction is None else self.fraction.as_integer_ratio()
        return hash((ratio, self.memory_mib, self.devices))

    def __str__(self) -> str:
        if self.fraction is not None:
            one = quantity.format_decimal(self.fraction)
        else:
            one = f"{self.memory_mib}mi"
        return one if self.devices == 1 else f"{self.devices}x{one}"

    @property
    def is_whole(self) -> bool:
        """Whether it takes whole GPUs."""
        return self.fraction == 1

    @property
    def fit_resource(self) -> names.ResourceName:
        """The fit's resource name; e.g. ``gpuslice.dev/fit-0.5``."""
        return names.ResourceName(f"{names.FIT_PREFIX}{self}")

    def memory_mib_on(self, gpu_memory_mib: int) -> int:
        """Return its MiB on one GPU of that memory: exact for memory, rounded down for a fraction.

        Down, so that shares that sum to at most 1 never exceed the GPU.
        """
        if self.memory_mib is not None:
            return self.memory_mib
        assert self.fraction is not None
        return self.fraction * gpu_memory_mib // 1

    def alike(self, other: Share) -> bool:
        """Whether both are of one kind (fraction or memory) and one device count."""
        same_kind = (self.fraction is None) == (other.fraction is None)
        return same_kind and self.devices == other.devices

    @property
    def amount(self) -> Fraction:
        """Its size among shares that are `alike`: the fraction, or the MiB."""
        if self.fraction is not None:
            return self.fraction
        assert self.memory_mib is not None
        return Fraction(self.memory_mib)


@functools.lru_cache(maxsize=1024)
def parse_share(text: str) -> Share:
    """Return the share of a normal form.

    Raises:
        ShareError: for any other text, also one that means the same (``0.50``, ``1x0.5``).
    """
    match = _NORMAL.fullmatch(text)
    if match is None:
        raise ShareError(f"{text!r} is no share such as 0.5, 4000mi or 2x0.5")
    devices, memory_mib, fraction = match.groups()
    try:
        share = Share(
            fraction=quantity.parse_decimal(fraction) if fraction else None,
            memory_mib=int(memory_mib) if memory_mib else None,
            devices=int(devices or 1),
        )
    except quantity.QuantityError as error:
        raise ShareError(f"{text!r} {error}") from error
    if str(share) != text:
        raise ShareError(f"{text!r} is not the normal form, which is {share}")
    return share


def share_of_fit(resource: str) -> Share | None:
    """Return the share that a fit's resource name is about, None where it is no fit of ours."""
    if not resource.startswith(names.FIT_PREFIX):
        return None
    try:
        return parse_share(resource.removeprefix(names.FIT_PREFIX))
    except ShareError:
        return None
