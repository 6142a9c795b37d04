# SPDX-License-Identifier: Apache-2.0
"""What runs on a node, what its kubelet keeps of it, and what it asks of the device plugin."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuslice.contract.ledger import Part
from gpuslice.contract.names import GpuUuid, NodeName, PodUid
from tests.property.placement.apiserver import Stored


@dataclass(frozen=True, slots=True)
class Process:
    """A container that runs, with what it takes of each GPU, by its tokens."""

    uid: PodUid
    node: NodeName
    slices: Mapping[GpuUuid, int]
    given: tuple[Part, ...]
    """What it was told that it has."""

    @property
    def memory_mib(self) -> dict[GpuUuid, int]:
        """Its MiB on each GPU."""
        return {part.gpu: part.memory_mib for part in self.given}


@dataclass(slots=True)
class Known:
    """A pod that kubelet has admitted, or refused."""

    uid: PodUid
    key: str
    phase: str = "Pending"
    """What is to be told to the API server."""
    told: str = "Pending"
    is_active: bool = True
    """Whether it still counts: for the fits, for its tokens, and for PodResources Get."""
    is_deleting: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """A container between GetPreferredAllocation and Allocate; kubelet does nothing else then."""

    stored: Stored
    available: frozenset[str]
    preferred: tuple[str, ...]


class Plugin(Protocol):
    """The device plugin."""

    is_up: bool
    is_streaming: bool

    def shown(self) -> frozenset[str]:
        """Return the healthy tokens of its list."""

    def prefer(self, available: Collection[str], size: int) -> tuple[str, ...]:
        """Answer GetPreferredAllocation."""

    def allocate(self, ids: Sequence[str]) -> tuple[Part, ...] | str:
        """Answer Allocate: what the container is given, or why it gets nothing."""

    def stream_ended(self) -> None:
        """Learn that kubelet is gone."""
