# SPDX-License-Identifier: Apache-2.0
"""What one node's agent goes by, out of the settings."""

from __future__ import annotations

from dataclasses import dataclass

from deviceplugin.patience import Limits
from gpuslice.contract.names import ResourceName
from gpuslice.contract.shares import Share
from gpuslice.contract.slices import SliceRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One node's rules."""

    resource: ResourceName
    """What is advertised; e.g. ``nvidia.com/gpu-slice``."""
    slice_rule: SliceRule
    shares: tuple[Share, ...]
    """Those whose fits every node shows."""
    default_gpu_memory_mib: int
    """Of a node that has no GPU yet."""
    mode: str
    """The sharing mode; e.g. ``time-slicing``."""
    limits: Limits
    reconcile_seconds: float
    """Between two passes that no event asks for."""
