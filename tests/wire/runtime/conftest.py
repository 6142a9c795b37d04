# SPDX-License-Identifier: Apache-2.0
"""The embedded API server, a client of it, and the two custom kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.resources import CUSTOM_RESOURCE_DEFINITIONS
from gpuslice.sim.apiserver.server import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(bookmark_seconds=0.05) as served:
        yield served


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> Iterator[KubeClient]:
    asking = KubeClient(config.load(server.kubeconfig(tmp_path / "kubeconfig")))
    yield asking
    asking.close()


@pytest.fixture
def gpu_nodes(client: KubeClient) -> KubeClient:
    """Return a client of a server that serves GpuNodes."""
    names = {"kind": "GpuNode", "plural": "gpunodes", "singular": "gpunode", "listKind": "L"}
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        },
    }
    client.create(
        CUSTOM_RESOURCE_DEFINITIONS,
        {
            "metadata": {"name": "gpunodes.gpuslice.dev"},
            "spec": {
                "group": "gpuslice.dev",
                "scope": "Cluster",
                "names": names,
                "versions": [version],
            },
        },
    )
    return client
