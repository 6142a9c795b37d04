# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md, from the registries that both halves really fill."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from deviceplugin.daemon import Daemon
from gpuslice.contract.names import NodeName
from gpuslice.runtime import settings
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.endpoint import Cluster
from gpuslice.runtime.metrics import PREFIX, Metrics
from webhook.worker import Worker

HEAD: Final = """\
# Metrics

Both halves serve `/metrics` in Prometheus' text format: the webhook on port 9404 (setting
`webhook.metricsPort`), the device plugin on port 9402 (`devicePlugin.metricsPort`). The dashboards
in `deploy/dashboards` and the alerts in `deploy/alerts` use these names and no others.

Labels mean the same everywhere: `node`, `gpu_uuid` (dcgm-exporter calls it `UUID`: join with
`label_replace(..., "gpu_uuid", "$1", "UUID", "(.*)")`), `namespace`, `pod`, `container`. Each half
also serves Prometheus' usual `process_*` metrics of itself.

<!-- Made by `make docs-reference` from the code's registries: edit the metric there. -->
"""


def registries() -> dict[str, Metrics]:
    """Return the metrics of each half as its process registers them, with all options on."""
    chosen = settings.load(overrides={"devicePlugin.watchUse": True})
    # Nothing is started, so nothing is ever asked.
    client = KubeClient(Cluster(server="https://localhost"), component="reference")
    worker = Worker(chosen, client, draining=threading.Event(), served=lambda: False)
    plugin = Metrics("device-plugin", process=False)
    Daemon(NodeName("node-a"), chosen, client, plugin)
    return {"The webhook": worker._metrics, "The device plugin": plugin}  # noqa: SLF001 - its own


def _families(metrics: Metrics) -> Iterator[Metric]:
    """Yield the families that are ours: the process' own are Prometheus' usual ones."""
    for family in metrics.registry.collect():
        if family.name.startswith(PREFIX):
            yield family


def series_labels() -> dict[str, tuple[str, ...]]:
    """Return every name that a query can ask for with its labels; histograms by their series."""
    found: dict[str, tuple[str, ...]] = {}
    for metrics in registries().values():
        for name, family, labels in _described(metrics):
            if family.type == "histogram":
                found[f"{name}_bucket"] = (*labels, "le")
                found[f"{name}_sum"] = found[f"{name}_count"] = labels
            else:
                found[name] = labels
    return found


def page() -> str:
    """Return the page."""
    blocks = [HEAD]
    for title, metrics in registries().items():
        rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
        rows += sorted(_rows(metrics))
        blocks += [f"## {title}\n", "\n".join(rows) + "\n"]
    return "\n".join(blocks)


def _rows(metrics: Metrics) -> Iterator[str]:
    for name, family, labels in _described(metrics):
        named = ", ".join(f"`{each}`" for each in labels)
        yield f"| `{name}` | {family.type} | {named or '-'} | {family.documentation} |"


def _described(metrics: Metrics) -> Iterator[tuple[str, Metric, tuple[str, ...]]]:
    """Yield each family with its name in queries and its labels."""
    known = {
        name: collector
        for collector, names in _collectors(metrics)
        for name in names
        if isinstance(collector, MetricWrapperBase)
    }
    for family in _families(metrics):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield name, family, _labels(family, known.get(family.name))


def _collectors(metrics: Metrics) -> Iterable[tuple[Collector, list[str]]]:
    # The registry has no public way from a metric that has no samples yet to its labels.
    known: Any = metrics.registry._collector_to_names  # noqa: SLF001
    return cast("Iterable[tuple[Collector, list[str]]]", known.items())


def _labels(family: Any, collector: Any) -> tuple[str, ...]:
    return tuple((collector or family)._labelnames)  # noqa: SLF001 - likewise
