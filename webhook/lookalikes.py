# SPDX-License-Identifier: Apache-2.0
"""Annotations that look like ours and aren't: a typing error would otherwise cost the GPU silently.

Some aren't errors but other products' keys, with a meaning that this one doesn't have: those are
refused, with the supported way named.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.annotations import FieldError, annotation_field, shown

_KNOWN: Final = frozenset(
    {
        *names.USER_KEYS,
        *map(names.prefixed, names.USER_KEYS),
        *names.ARBITER_ANNOTATIONS,
        names.MPS,
        names.PLACEMENT,
    }
)
_TARGETS: Final = {**{key: key for key in names.USER_KEYS}, "placement": names.PLACEMENT}
_PER_CONTAINER: Final = re.compile(
    r"nvidia\.com/container\.(.*)\.(gpu-memory|gpus)(?:\..*)?", re.ASCII
)
_PER_CONTAINER_PREFIX: Final = "nvidia.com/container."
_CLOSENESS: Final = 0.86
"""Two swapped or one missing letter are near enough; another word behind is not."""


def warnings(annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning, with the right name, for each key that looks like one of ours."""
    for key in sorted(annotations):
        meant = _meant(key)
        if meant is not None:
            yield f"annotation {shown(key)} is not read: did you mean {meant}?"
    has_share = any(
        key in annotations
        for plain in (names.FRACTION, names.MEMORY)
        for key in (plain, names.prefixed(plain))
    )
    if not has_share:
        for key in (names.CONTAINER, names.prefixed(names.CONTAINER)):
            if key in annotations:
                yield f"annotation {key} does nothing without {names.FRACTION} or {names.MEMORY}"


@functools.lru_cache(maxsize=1024)
def _meant(key: str) -> str | None:
    if key in _KNOWN or _PER_CONTAINER.fullmatch(key):
        return None
    prefix, _, last = key.rpartition("/")
    plain = re.sub(r"[_.]", "-", last.lower())
    if "gpu" not in plain and "fraction" not in plain and prefix != names.GROUP:
        return None
    close = difflib.get_close_matches(plain, _TARGETS, n=1, cutoff=_CLOSENESS)
    return _TARGETS[close[0]] if close else None


def refusals(annotations: Mapping[str, str]) -> Iterator[FieldError]:
    """Yield an error for each key of KAI's per-container annotations."""
    for key in sorted(annotations):
        match = _PER_CONTAINER.fullmatch(key) if key.startswith(_PER_CONTAINER_PREFIX) else None
        if match is not None:
            container = match.group(1) or "train"
            yield FieldError(
                field=annotation_field(key),
                value=annotations[key],
                problem="belongs to shares per container, which are not supported",
                allowed="one share for the pod, on one of its containers",
                example=f'{names.MEMORY}: "4Gi" with {names.CONTAINER}: "{container}"',
            )
