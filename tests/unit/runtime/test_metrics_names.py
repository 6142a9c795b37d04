# SPDX-License-Identifier: Apache-2.0
"""Metrics' names, held to Prometheus' rules where they are made."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from gpuslice.runtime.metrics import Metrics


def test_each_metric_has_the_prefix() -> None:
    """Whatever kind it is."""
    metrics = Metrics("test", process=False)
    metrics.counter("a_total", "A").inc()
    metrics.gauge("b_bytes", "B", ("node",)).labels(node="n").set(1)
    metrics.histogram("c_seconds", "C").observe(0.002)
    text = generate_latest(metrics.registry).decode()
    for line in (
        "gpuslice_a_total 1.0",
        'gpuslice_b_bytes{node="n"} 1.0',
        "gpuslice_c_seconds_sum",
    ):
        assert line in text
    assert 'gpuslice_c_seconds_bucket{le="0.0005"} 0.0' in text


def test_a_counter_is_called_total_and_nothing_else_is() -> None:
    """A slip is found by the first test that makes the metric."""
    metrics = Metrics("test", process=False)
    with pytest.raises(AssertionError):
        metrics.counter("a", "A")
    with pytest.raises(AssertionError):
        metrics.gauge("a_total", "A")


def test_registries_are_apart() -> None:
    """Two processes' worth of metrics can live in one test."""
    Metrics("one", process=False).counter("a_total", "A")
    Metrics("two", process=False).counter("a_total", "A")


def test_a_process_tells_of_itself() -> None:
    """Memory and descriptors, for the soak tests."""
    text = generate_latest(Metrics("test").registry).decode()
    assert "process_resident_memory_bytes" in text
