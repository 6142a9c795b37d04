# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

from __future__ import annotations

import os

import hypothesis

# Time says nothing about a law on a shared machine. Where CI runs, the examples are the same each
# time, so that a change is judged by what it changed; elsewhere they are new each time.
hypothesis.settings.register_profile(
    "gpuslice",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("gpuslice")
