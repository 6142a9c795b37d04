# SPDX-License-Identifier: Apache-2.0
"""What admission decides by, beside the pod itself: the settings, and what is known of the cluster.

Admission asks nobody: a decision depends on the review and on this, and on nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.annotations import Bounds
from gpuslice.contract.ledger import Ledger
from gpuslice.contract.placement import Policy
from gpuslice.contract.shares import Share
from gpuslice.contract.slices import SliceRule

DEFAULT_SCHEDULER: Final = "default-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The cluster's GPUs, as far as they are known."""

    kinds_mib: tuple[int, ...] = ()
    """The memory of each kind of GPU; empty while none is known."""
    most_gpus: int | None = None
    """Of any node; None while none is known."""
    modes: frozenset[str] = frozenset()
    """How its nodes share their GPUs; e.g. ``mps``."""


def fleet_of(ledgers: Iterable[Ledger], modes: frozenset[str] = frozenset()) -> Fleet:
    """Return what the ledgers say about the cluster's GPUs, and how its nodes share them."""
    kinds: set[int] = set()
    most = 0
    for ledger in ledgers:
        kinds.update(gpu.memory_mib for gpu in ledger.gpus if gpu.memory_mib > 0)
        most = max(most, len(ledger.gpus))
    return Fleet(kinds_mib=tuple(sorted(kinds)), most_gpus=most or None, modes=modes)


@dataclass(frozen=True, kw_only=True, eq=False)
class AdmissionPolicy:
    """Settings and cluster, frozen for one decision.

    Compared by identity: what was worked out for a policy is remembered by it, and there is a new
    one only when the cluster's GPUs or its list of shares change.
    """

    enabled: bool = True
    """The switch for the whole feature."""
    slice_resource: str = names.SLICE_RESOURCE
    rule: SliceRule = field(default_factory=SliceRule)
    min_share_mib: int = 128
    default_gpu_memory_mib: int = 24 * 1024
    """Stands in while no GPU is known."""
    fleet: Fleet = field(default_factory=Fleet)
    shares_in_use: frozenset[Share] = frozenset()
    """Those that nodes publish fits for."""
    most_shares: int = 64
    placement: Policy = Policy.PACK
    default_scheduler: str = DEFAULT_SCHEDULER
    adopted_schedulers: frozenset[str] = frozenset()
    """Whose pods become the default scheduler's."""
    sidecars: frozenset[str] = frozenset()
    """Containers that other tools put into pods, and that never are the ones that compute."""
    whole_gpu_resource: str | None = None
    """Asked for in whole numbers and served as shares of 1; None leaves it alone."""
    runtime_class: str | None = None
    """For sharing pods that name none; None leaves it to the nodes."""
    template_warnings: bool = True
    """Whether the authors of templates hear what their pods would meet."""
    hides_gpus: bool = False
    """Whether the other containers of a sharing pod are kept from seeing every GPU."""

    @functools.cached_property
    def kinds_mib(self) -> tuple[int, ...]:
        """The memory of each kind of GPU, at least one."""
        return self.fleet.kinds_mib or (self.default_gpu_memory_mib,)

    @functools.cached_property
    def bounds(self) -> Bounds:
        """What a pod may ask for."""
        return Bounds(
            smallest_fraction=self.rule.smallest_fraction(self.kinds_mib),
            min_share_mib=self.min_share_mib,
            largest_gpu_mib=max(self.fleet.kinds_mib, default=None),
            most_gpus=self.fleet.most_gpus,
        )

    @functools.cached_property
    def least_slices_per_gpu(self) -> int:
        """N of the GPU with fewest."""
        return min(max(1, self.rule.slices_of_gpu(mib)) for mib in self.kinds_mib)

    def fit_of(self, share: Share) -> Share:
        """Return the share whose fit a pod asks for.

        Its own; beyond the cap, that of the next larger share in use of the same kind and number
        of devices, so that a place for it is a place for the pod. None such: its own all the same.
        """
        if share in self.shares_in_use or len(self.shares_in_use) < self.most_shares:
            return share
        larger = [
            other
            for other in self.shares_in_use
            if other.alike(share) and other.amount > share.amount
        ]
        return min(larger, key=lambda other: other.amount, default=share)
