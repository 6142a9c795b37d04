# SPDX-License-Identifier: Apache-2.0
"""What is told about decisions: metrics and logs."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from gpuslice.contract import pods
from gpuslice.runtime import logs
from gpuslice.runtime.metrics import Metrics
from webhook.arbiter import Binding, Verdict
from webhook.reviews import Answer, Review

log = logs.get(__name__)

WAIT_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0)


class Records:
    """Counts and logs each decision."""

    def __init__(self, metrics: Metrics) -> None:
        """Make the metrics."""
        self._requests = metrics.counter(
            "admission_requests_total",
            "Reviews answered, by endpoint and decision.",
            ("endpoint", "decision"),
        )
        self._seconds = metrics.histogram(
            "admission_duration_seconds", "Time to answer a review.", ("endpoint",)
        )
        self._binds = metrics.counter(
            "bind_decisions_total",
            "Binds answered, by outcome and the reason of a denial.",
            ("outcome", "reason"),
        )
        self._room_wait = metrics.histogram(
            "bind_room_wait_seconds",
            "Time that a bind waited for a ledger to change, and to decide and write.",
            buckets=WAIT_SECONDS,
        )
        self._node_wait = metrics.histogram(
            "bind_node_wait_seconds",
            "Time that a granted bind waited for its Node to show the claim.",
            buckets=WAIT_SECONDS,
        )
        self._expiry = metrics.gauge(
            "certificate_expiry_timestamp_seconds", "When the certificate that is served expires."
        )

    def certificate(self, expires: datetime) -> None:
        """Take down when the certificate expires."""
        self._expiry.set(expires.timestamp())

    def review(self, *, route: str, review: Review, answer: Answer, seconds: float) -> None:
        """Take down one review."""
        endpoint = route.removeprefix("/admit/")
        decision = "allowed" if answer.allowed else "denied"
        if answer.operations:
            decision = "mutated"
        self._requests.labels(endpoint=endpoint, decision=decision).inc()
        self._seconds.labels(endpoint=endpoint).observe(seconds)
        if not answer.allowed:
            log.info(
                "denied",
                endpoint=endpoint,
                uid=review.uid,
                namespace=review.namespace,
                pod=_name(review),
                code=answer.code,
                reason=answer.message,
            )
        elif answer.operations:
            log.debug(
                "mutated",
                endpoint=endpoint,
                uid=review.uid,
                namespace=review.namespace,
                pod=_name(review),
                operations=len(answer.operations),
            )

    def bind(self, binding: Binding, verdict: Verdict) -> None:
        """Take down one bind."""
        reason = "" if verdict.denial is None else verdict.denial.reason
        self._binds.labels(outcome=verdict.outcome, reason=reason).inc()
        if verdict.outcome == "passed":
            return
        self._room_wait.observe(verdict.waited_for_room_seconds)
        if verdict.denial is None:
            self._node_wait.observe(verdict.waited_for_node_seconds)
            log.info(
                "bind_granted",
                namespace=binding.namespace,
                pod=binding.name,
                node=binding.node,
                waited_seconds=round(
                    verdict.waited_for_room_seconds + verdict.waited_for_node_seconds, 3
                ),
                **{key.rpartition("/")[2]: value for key, value in verdict.annotations.items()},
            )


def _name(review: Review) -> str:
    return review.name or pods.ref(review.content or {}).name
