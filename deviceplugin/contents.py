# SPDX-License-Identifier: Apache-2.0
"""What is brought into a container with its tokens, whatever the means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass


class InjectionError(Exception):
    """A container can't be given its GPUs; the message says why, and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of the node."""

    host: str
    container: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Environment, devices and mounts."""

    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()
    """Device files, by their path on the node and in the container."""
    cdi: tuple[str, ...] = ()
    """Names of CDI devices; e.g. ``gpuslice.dev/gpu=GPU-...``."""

    def with_more(self, other: Contents) -> Contents:
        """Return both; of a variable in both, the other's."""
        return Contents(
            environment={**self.environment, **other.environment},
            mounts=(*self.mounts, *other.mounts),
            devices=tuple(dict.fromkeys((*self.devices, *other.devices))),
            cdi=(*self.cdi, *other.cdi),
        )
