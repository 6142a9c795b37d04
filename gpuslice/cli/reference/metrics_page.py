# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md, from the registries that both halves really fill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from deviceplugin.allocator import Allocator
from deviceplugin.telling import LedgerCollector, Reporter
from gpuslice.contract.ledger import Claim, ClaimState, Gpu, Ledger, Part, PodRef
from gpuslice.contract.names import GpuUuid, NodeName, PodUid
from gpuslice.contract.shares import parse_share
from gpuslice.runtime.kube.events import EventRecorder
from gpuslice.runtime.metrics import PREFIX, Metrics
from webhook.records import Records

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
_NODE: Final = NodeName("node-a")


def registries() -> dict[str, Metrics]:
    """Return the metrics of each half as its process makes them."""
    webhook = Metrics("webhook", process=False)
    Records(webhook)
    plugin = Metrics("device-plugin", process=False)
    # Nothing is recorded here, so no API server is needed.
    Reporter(_NODE, plugin, cast("EventRecorder", None))
    allocator = Allocator(_example(), clock=lambda: 0.0)
    plugin.collect_with(LedgerCollector(_NODE, allocator, lambda: True))
    return {"The webhook": webhook, "The device plugin": plugin}


def _example() -> Ledger:
    gpu = Gpu(uuid=GpuUuid("GPU-0"), index=0, product="L4", memory_mib=23034, slices=100)
    share = parse_share("0.5")
    claim = Claim(
        pod=PodRef(namespace="default", name="a", uid=PodUid("a")),
        container="main",
        share=share,
        fit=share,
        state=ClaimState.HELD,
        shape=(Part(gpu=gpu.uuid, memory_mib=11517, slices=50),),
    )
    return Ledger(node=_NODE, gpus=(gpu,), claims=(claim,))


def series_names() -> set[str]:
    """Return every name that a query can ask for, with Prometheus' endings of histograms."""
    found = set()
    for metrics in registries().values():
        for family in metrics.registry.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found.add(name)
            if family.type == "histogram":
                found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
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
    known = {
        name: collector
        for collector, names in _collectors(metrics)
        for name in names
        if isinstance(collector, MetricWrapperBase)
    }
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert name.startswith(PREFIX), name
        labels = ", ".join(f"`{each}`" for each in _labels(family, known.get(family.name)))
        yield f"| `{name}` | {family.type} | {labels or '-'} | {family.documentation} |"


def _collectors(metrics: Metrics) -> Iterable[tuple[Collector, list[str]]]:
    # The registry has no public way from a metric that has no samples yet to its labels.
    known: Any = metrics.registry._collector_to_names  # noqa: SLF001
    return cast("Iterable[tuple[Collector, list[str]]]", known.items())


def _labels(family: Metric, collector: Any) -> tuple[str, ...]:
    if collector is not None:
        return tuple(collector._labelnames)  # noqa: SLF001 - likewise
    return tuple(family.samples[0].labels) if family.samples else ()
