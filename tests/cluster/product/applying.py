# SPDX-License-Identifier: Apache-2.0
"""Manifests given to kubectl, and what it prints."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from tests.cluster.harness.client import Json
from tests.cluster.harness.cluster import Cluster

Done = subprocess.CompletedProcess[str]


def apply(cluster: Cluster, *objects: Json, flags: Sequence[str] = (), check: bool = True) -> Done:
    """`kubectl apply -f -`, with what it prints to both streams."""
    document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    stdin = json.dumps(document)
    return cluster.kubectl("apply", "--filename=-", *flags, stdin=stdin, check=check)


def warnings(done: Done) -> list[str]:
    """The warnings that the API server passed on."""
    start = "Warning: "
    return [line.removeprefix(start) for line in done.stderr.splitlines() if line.startswith(start)]
