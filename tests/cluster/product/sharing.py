# SPDX-License-Identifier: Apache-2.0
"""Pods that ask for a share of a GPU."""

from __future__ import annotations

from typing import Any

from gpuslice.contract import names
from tests.cluster.harness.client import Json
from tests.cluster.harness.workloads import pod


def sharing(
    name: str,
    *,
    fraction: str = "",
    memory_mib: int = 0,
    annotations: dict[str, str] | None = None,
    **like: Any,
) -> Json:
    """A pod with a share of a GPU.

    Args:
        name: its name, and its container's.
        fraction: its `gpu-fraction`, none where empty.
        memory_mib: its `gpu-memory`, none where 0.
        annotations: further ones.
        like: as for `workloads.pod`.
    """
    made = pod(name, **like)
    asked = dict(annotations or {})
    if fraction:
        asked[names.FRACTION] = fraction
    if memory_mib:
        asked[names.MEMORY] = str(memory_mib)
    made["metadata"]["annotations"] = asked
    # Not 0: its deletion would be a forced one, after which a claim is kept for ten seconds.
    made["spec"]["terminationGracePeriodSeconds"] = 1
    return made


def template(made: Json) -> Json:
    """A pod as the template of a Deployment or Job."""
    metadata = {key: made["metadata"][key] for key in ("labels", "annotations")}
    return {"metadata": metadata, "spec": made["spec"]}
