# SPDX-License-Identifier: Apache-2.0
"""The way of a request: to its desk, past Flask or through it, and what is told about it."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
import structlog

from gpuslice.runtime import logs
from gpuslice.runtime.metrics import Metrics
from tests.unit.webhook.podmaking import POLICY, build_pod
from webhook.app import Deciders, create_app
from webhook.arbiter import Binding, Verdict
from webhook.policies import AdmissionPolicy
from webhook.records import Records


class Site:
    """The application with its records, and a log that can be read."""

    def __init__(self) -> None:
        self.draining = threading.Event()
        self.metrics = Metrics("webhook")
        self.decide_by: Callable[[], AdmissionPolicy] = lambda: POLICY
        self.log = io.StringIO()
        records = Records(self.metrics)

        def bind(binding: Binding) -> Verdict:
            verdict = Verdict(outcome="granted", annotations={"gpuslice.dev/gpu": "GPU-1"})
            records.bind(binding, verdict)
            return verdict

        self.client = create_app(
            Deciders(policy=self.policy, bind=bind),
            record=records.review,
            clock=lambda: 0.0,
            draining=self.draining,
            max_body_bytes=10_000,
        ).test_client()

    def policy(self) -> AdmissionPolicy:
        return self.decide_by()

    def ask(self, content: Any, kind: str = "Pod", route: str = "/admit/pods", **how: Any) -> Any:
        request = {"uid": "u-17", "operation": "CREATE", "kind": {"kind": kind}, "name": "p"}
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {**request, "namespace": "default", "object": content},
        }
        return self.client.post(route, data=json.dumps(review), **how)

    def lines(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.log.getvalue().splitlines()]


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure("info", "json", made.log)
    yield made
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


BINDING = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "node-a"}}


def test_every_line_about_a_decision_bears_the_requests_uid(site: Site) -> None:
    site.ask(build_pod({"gpu-fraction": "7"}))
    site.ask(BINDING, "Binding", "/admit/bindings")
    assert [(line["event"], line["uid"]) for line in site.lines()] == [
        ("denied", "u-17"),
        ("bind_granted", "u-17"),
    ]


def test_an_ordinary_pod_is_no_line_in_the_log(site: Site) -> None:
    assert site.ask(build_pod()).status_code == 200
    assert site.lines() == []


def test_a_fault_of_ours_is_a_500_in_the_log_and_the_next_is_served(site: Site) -> None:
    def broken() -> AdmissionPolicy:
        raise RuntimeError("broken")

    site.decide_by = broken
    assert site.ask(build_pod()).status_code == 500
    (line,) = site.lines()
    assert line["event"] == "review_failed"
    assert "broken" in line["exception"]
    site.decide_by = lambda: POLICY
    assert site.ask(build_pod()).status_code == 200


def test_a_draining_server_asks_every_client_to_leave(site: Site) -> None:
    assert "Connection" not in site.ask(build_pod()).headers
    site.draining.set()
    assert site.ask(build_pod()).headers["Connection"] == "close"
    assert site.client.get("/nowhere").headers["Connection"] == "close"


def test_what_the_shortcut_cant_take_is_answered_by_flask(site: Site) -> None:
    assert site.client.get("/admit/pods").status_code == 405
    assert site.client.post("/nowhere").status_code == 404
    assert site.client.post("/admit/pods", data=b" " * 10_001).status_code == 413
    body = orjson.dumps({"a": 1})
    without = {"input_stream": io.BytesIO(body), "content_length": None}
    assert site.client.post("/admit/pods", **without).status_code == 400


def test_metrics_are_named_as_prometheus_has_it(site: Site) -> None:
    """One prefix, base units at the end, ``_total`` for counters alone, no unit in a label."""
    for family in site.metrics.registry.collect():
        if family.name.startswith("process_"):
            continue
        assert re.fullmatch(r"gpuslice_[a-z][a-z_]*[a-z]", family.name)
        assert not family.name.endswith(("_ms", "_milliseconds", "_mib", "_percent", "_total"))
        assert family.documentation.strip()
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        for sample in family.samples:
            assert family.type != "counter" or sample.name.endswith(("_total", "_created"))
            assert set(sample.labels) <= {
                "component",
                "decision",
                "endpoint",
                "le",
                "outcome",
                "reason",
                "version",
            }
