# SPDX-License-Identifier: Apache-2.0
"""gpuslice as users deploy it, on an idle cluster."""

from __future__ import annotations

from gpuslice.contract import names
from tests.cluster.harness.client import pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.workloads import create_running
from tests.cluster.product.serving import GPU_NODES
from tests.cluster.product.sharing import sharing
from tests.cluster.product.witness import Witness, exec_environment


def test_every_node_has_a_ledger_that_shows_its_gpus(product: Cluster) -> None:
    ledgers = {each["metadata"]["name"]: each for each in product.api.items(GPU_NODES)}
    assert sorted(product.nodes) == sorted(ledgers)
    for name, node in product.nodes.items():
        assert node.gpus.uuids == tuple(gpu["uuid"] for gpu in ledgers[name]["spec"]["gpus"])


def test_a_share_runs_on_the_gpu_that_it_is_told(product: Cluster, namespace: str) -> None:
    running = create_running(product.api, sharing("half", fraction="0.5", namespace=namespace))
    told = running["metadata"]["annotations"][names.GPU_ANNOTATION]
    assert told in product.nodes[running["spec"]["nodeName"]].gpus.uuids
    assert exec_environment(product, running, "half")[names.ENV_VISIBLE_DEVICES] == told
    assert (told,) == Witness(product).check().gpus_of(running)


def test_an_ordinary_pod_is_left_as_it_is(product: Cluster, namespace: str) -> None:
    made = product.api.create(pod_path(namespace=namespace), sharing("plain", namespace=namespace))
    assert names.SHARE_LABEL not in made["metadata"].get("labels", {})
    assert made["spec"]["containers"][0]["resources"] == {}
