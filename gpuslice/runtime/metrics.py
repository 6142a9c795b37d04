# SPDX-License-Identifier: Apache-2.0
"""Metrics of one process, named in one place so that they follow Prometheus' rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gpuslice.runtime import version

PREFIX: Final = "gpuslice_"
FAST_SECONDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
)
"""Buckets for what should take milliseconds."""


class Metrics:
    """The registry of one process, and the makers of its metrics.

    Args:
        component: ``webhook`` or ``device-plugin``.
        process: whether to tell of this process too: memory, CPU, descriptors.
    """

    def __init__(self, component: str, *, process: bool = True) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        if process:
            ProcessCollector(registry=self.registry)
        build = self.gauge(
            "build_info", "Which gpuslice this is; always 1", ("version", "component")
        )
        build.labels(version=version.text(), component=component).set(1)

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """Return a new counter; its name ends in ``_total``.

        Args:
            name: without the prefix; e.g. ``allocations_total``.
            text: one sentence for people.
            labels: their names; e.g. ``("result",)``.
        """
        assert name.endswith("_total"), name
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """Return a new gauge; its name ends in its unit, and never in ``_total``."""
        assert not name.endswith("_total"), name
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def histogram(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = FAST_SECONDS,
    ) -> Histogram:
        """Return a new histogram, of seconds unless `buckets` says otherwise."""
        return Histogram(PREFIX + name, text, labels, registry=self.registry, buckets=buckets)

    def collect_with(self, collector: Collector) -> None:
        """Let a collector read its values at scrape time, so that no gauge is ever stale."""
        self.registry.register(collector)
