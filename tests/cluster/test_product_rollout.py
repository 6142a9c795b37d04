# SPDX-License-Identifier: Apache-2.0
"""An upgrade of either half while pods come and go: none is lost, and none is refused."""

from __future__ import annotations

import pytest

from tests.cluster.harness.cluster import Cluster
from tests.cluster.product.arrivals import Arrivals
from tests.cluster.product.serving import wait_serving

WEBHOOK = ("deployment/gpuslice-webhook", "--namespace=gpuslice")
AGENTS = ("daemonset/gpuslice-device-plugin", "--namespace=gpuslice-nodes")


@pytest.mark.parametrize(
    ("workload", "node"),
    [
        pytest.param(WEBHOOK, "", id="webhook"),
        pytest.param(AGENTS, "", id="device-plugin"),
        pytest.param(AGENTS, "node-b", id="device-plugin-pods-of-one-node"),
    ],
)
def test_no_pod_is_lost_and_no_create_refused_while_it_rolls(
    product: Cluster, namespace: str, workload: tuple[str, str], node: str
) -> None:
    """Where all pods are for one node, they wait while it has no device plugin."""
    with Arrivals(product, namespace, node) as arrivals:
        product.kubectl("rollout", "restart", *workload)
        product.kubectl("rollout", "status", *workload, "--timeout=180s", timeout_seconds=190)
        arrivals.wait_more(5)
    assert arrivals.unmade == []
    assert list(map(str, arrivals.rejected())) == []
    assert len(arrivals.fates) > 10
    if node:
        assert any(not serving for _, serving in arrivals.serving)
    wait_serving(product)
