# SPDX-License-Identifier: Apache-2.0
"""Which gpuslice this is."""

from __future__ import annotations

import functools


@functools.cache
def text() -> str:
    """Return the installed version; e.g. ``0.1.0``."""
    # It drags in the email package, and most processes ask once or never.
    from importlib import metadata  # noqa: PLC0415

    try:
        return metadata.version("gpuslice")
    except metadata.PackageNotFoundError:
        return "unknown"
