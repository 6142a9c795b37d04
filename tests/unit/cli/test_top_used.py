# SPDX-License-Identifier: Apache-2.0
"""What containers use, from the device plugins' metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gpuslice.cli.reference import metrics_page
from gpuslice.cli.top import figures, used
from gpuslice.runtime.kube.errors import UnavailableError
from gpuslice.runtime.kube.resources import Resource
from tests.unit.webhook.ledgermaking import build_ledger, with_claim

PORTS = [{"name": "metrics", "containerPort": 9402}]
LABELS = ("namespace", "pod", "container", "node", "gpu_uuid")


def agent(node: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"plugin-{node}", "namespace": "gpuslice-nodes"},
        "spec": {"nodeName": node, "containers": [{"name": "p", "ports": PORTS}]},
    }


def page(*uses: tuple[str, str, int]) -> str:
    registry = CollectorRegistry()
    gauge = Gauge(used.METRIC, "x", LABELS, registry=registry)
    for pod, gpu, mib in uses:
        gauge.labels("default", pod, "train", "node-a", gpu).set(mib * 2**20 + 5)
    return generate_latest(registry).decode()


class Pages:
    """Two device plugins; one doesn't answer."""

    def __init__(self, text: str) -> None:
        self.text_of_a = text
        self.asked: list[str] = []

    def list(self, resource: Resource, *, labels: str = "") -> list[Mapping[str, Any]]:
        assert "component=device-plugin" in labels
        return [agent("node-a"), agent("node-b")]

    def text(self, path: str, *, timeout_seconds: float) -> str:
        self.asked.append(path)
        if "node-b" in path:
            raise UnavailableError("no route to host")
        return self.text_of_a


def test_each_device_plugin_is_asked_by_the_proxy_and_silence_is_told() -> None:
    pages = Pages(page(("pod-1", "GPU-1", 700)))
    known, problems = used.read(pages)
    assert known == {("default", "pod-1", "train", "GPU-1"): 700}
    assert problems == ["node-b: no route to host"]
    assert pages.asked[0] == (
        "/api/v1/namespaces/gpuslice-nodes/pods/plugin-node-a:9402/proxy/metrics"
    )


def test_a_device_plugin_that_doesnt_measure_is_told() -> None:
    known, problems = used.read(Pages("gpuslice_claims 1\n"))
    assert known == {}
    assert problems[0] == "node-a: devicePlugin.watchUse is off"


def test_use_is_summed_for_pods_gpus_and_nodes() -> None:
    ledger = with_claim(with_claim(build_ledger(), "1", "0.5"), "2", "0.25")
    gpu = str(ledger.gpus[0].uuid)
    known = {("default", "pod-1", "train", gpu): 700, ("default", "pod-2", "train", gpu): 50}
    assert [fact["usedMiB"] for fact in figures.of_pods([ledger], "", known)] == [700, 50]
    assert figures.of_gpus([ledger], known)[0]["usedMiB"] == 750
    assert figures.of_nodes([ledger], known)[0]["usedMiB"] == 750


@pytest.mark.parametrize("of_kind", [figures.of_nodes, figures.of_gpus])
def test_what_isnt_known_is_not_zero(of_kind: Any) -> None:
    assert of_kind([build_ledger()])[0]["usedMiB"] is None


def test_the_metric_is_one_of_the_device_plugins() -> None:
    assert set(LABELS) == set(metrics_page.series_labels()[used.METRIC])
