# SPDX-License-Identifier: Apache-2.0
"""What holds for one GPU: the node's settings, and what overrides them there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from deviceplugin.inventory import Gpu, Inventory
from gpuslice.contract.names import GpuUuid

TIME_SLICING: Final = "time-slicing"
MPS: Final = "mps"
HAMI_CORE: Final = "hami-core"

ENVIRONMENT: Final = "environment"
CDI: Final = "cdi"
DEVICE_NODES: Final = "device-nodes"

MIXED: Final = "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a GPU is shared, watched, and brought into containers."""

    mode: str = TIME_SLICING
    injection: str = ENVIRONMENT
    ignored_xids: frozenset[int] = frozenset()
    recovery_seconds: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What differs where all that it names is so; what it doesn't name is no condition."""

    nodes: frozenset[str] = frozenset()
    node_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    uuids: frozenset[str] = frozenset()
    indexes: frozenset[int] = frozenset()
    models: frozenset[str] = frozenset()
    mode: str | None = None
    injection: str | None = None
    ignored_xids: frozenset[int] | None = None
    recovery_seconds: float | None = None

    def is_for(self, *, node: str, labels: Mapping[str, str], gpu: Gpu) -> bool:
        """Whether it holds for a GPU; for a MIG instance, its parent's UUID counts too."""
        return (
            (not self.nodes or node in self.nodes)
            and all(labels.get(key) == value for key, value in self.node_labels.items())
            and (not self.uuids or bool(self.uuids & {gpu.uuid, gpu.mig_parent}))
            and (not self.indexes or gpu.index in self.indexes)
            and (not self.models or gpu.product in self.models)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """A node's policies; pure, so that a reload is another value."""

    base: Policy = Policy()
    overrides: tuple[Override, ...] = ()

    def of(self, gpu: Gpu, *, node: str, labels: Mapping[str, str]) -> Policy:
        """Return what holds for one GPU: each setting as the last override that has it says."""
        policy = self.base
        for each in self.overrides:
            if each.is_for(node=node, labels=labels, gpu=gpu):
                said = {
                    field.name: getattr(each, field.name)
                    for field in dataclasses.fields(Policy)
                    if getattr(each, field.name) is not None
                }
                policy = dataclasses.replace(policy, **said)
        return policy

    def of_all(
        self, inventory: Inventory, *, node: str, labels: Mapping[str, str]
    ) -> dict[GpuUuid, Policy]:
        """Return what holds for each GPU of a node."""
        return {gpu.uuid: self.of(gpu, node=node, labels=labels) for gpu in inventory.gpus}


def mode_of(policies: Iterable[Policy], *, otherwise: str) -> str:
    """Return a node's mode in one word: that of all its GPUs, or ``mixed``."""
    modes = {policy.mode for policy in policies} or {otherwise}
    return modes.pop() if len(modes) == 1 else MIXED
