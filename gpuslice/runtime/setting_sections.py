# SPDX-License-Identifier: Apache-2.0
"""What sections of the settings are made of."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gpuslice.contract import names

Port = Annotated[int, Meta(ge=0, le=65535)]
"""0 takes any free one."""
Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Period = Annotated[float, Meta(gt=0)]
"""Seconds between two looks."""
DOMAIN: Final = "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
Name = Annotated[str, Meta(pattern=f"^{DOMAIN}$", description="the name of a Kubernetes object")]
ResourceText = Annotated[
    str,
    Meta(
        pattern=rf"^{DOMAIN}/[A-Za-z0-9]([-\w.]{{0,61}}[A-Za-z0-9])?$",
        description="a resource's name with its domain",
        examples=[names.WHOLE_GPU_RESOURCE],
    ),
]


def spelling(field: str) -> str:
    """Return a field's key in the file: ``slice_memory_mib`` is ``sliceMemoryMiB``."""
    first, *others = field.split("_")
    return first + "".join("MiB" if part == "mib" else part.capitalize() for part in others)


class Section(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=spelling
):
    """A mapping in the file."""
