# SPDX-License-Identifier: Apache-2.0
"""Events as people see them with kubectl describe."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.endpoint import Cluster
from gpuslice.runtime.kube.events import MESSAGE_LIMIT, QUEUE_LIMIT, QUIET_SECONDS, EventRecorder
from gpuslice.runtime.kube.resources import EVENTS, NODES, PODS

POD = {"metadata": {"name": "p", "namespace": "default", "uid": "u-1"}}
COMPONENT = "gpuslice.dev/device-plugin"


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 5, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def recorder_of(client: KubeClient, clock: Clock | None = None) -> EventRecorder:
    return EventRecorder(client, component=COMPONENT, instance="node-a", clock=clock or Clock())


def events(client: KubeClient) -> list[dict[str, Any]]:
    return list(client.list(EVENTS, namespace="default"))


def test_an_event_names_its_object_its_reason_and_its_author(client: KubeClient) -> None:
    """What kubectl describe looks for."""
    recorder = recorder_of(client).start()
    recorder.record(PODS, POD, "SlicesAllocated", "50 slices of GPU-1")
    recorder.stop()
    (event,) = events(client)
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "p",
        "uid": "u-1",
    }
    assert (event["reason"], event["type"]) == ("SlicesAllocated", "Normal")
    assert event["message"] == "50 slices of GPU-1"
    assert (event["reportingComponent"], event["reportingInstance"]) == (COMPONENT, "node-a")
    assert (event["count"], event["firstTimestamp"]) == (1, "2026-05-01T12:00:00Z")


def test_an_event_about_a_node_lives_in_the_default_namespace(client: KubeClient) -> None:
    """Where kubectl describe node looks."""
    recorder = recorder_of(client).start()
    recorder.record(NODES, {"metadata": {"name": "node-a"}}, "GpuUnhealthy", "x", warning=True)
    recorder.stop()
    (event,) = events(client)
    assert event["type"] == "Warning"
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a"}


def settle(recorder: EventRecorder) -> None:
    deadline = time.monotonic() + 5
    while not recorder._queue.empty() and time.monotonic() < deadline:
        time.sleep(0.005)


def test_the_same_event_is_counted_not_repeated(client: KubeClient) -> None:
    """At most one write in ten seconds, and no count is lost."""
    clock = Clock()
    recorder = recorder_of(client, clock).start()
    for _ in range(5):
        recorder.record(PODS, POD, "Waiting", "no room")
    settle(recorder)
    clock.now += timedelta(seconds=QUIET_SECONDS)
    recorder.record(PODS, POD, "Waiting", "no room")
    recorder.record(PODS, POD, "Waiting", "something else")
    recorder.stop()
    found = {event["message"]: event for event in events(client)}
    assert found["no room"]["count"] == 6
    assert found["no room"]["firstTimestamp"] == "2026-05-01T12:00:00Z"
    assert found["no room"]["lastTimestamp"] == "2026-05-01T12:00:10Z"
    assert found["something else"]["count"] == 1


def test_an_event_that_has_expired_is_made_anew(client: KubeClient) -> None:
    """The API server keeps them for an hour."""
    clock = Clock()
    recorder = recorder_of(client, clock).start()
    recorder.record(PODS, POD, "Waiting", "no room")
    settle(recorder)
    deadline = time.monotonic() + 5
    while not (made := events(client)) and time.monotonic() < deadline:
        time.sleep(0.005)
    client.delete(EVENTS, made[0]["metadata"]["name"], namespace="default")
    clock.now += timedelta(seconds=QUIET_SECONDS)
    recorder.record(PODS, POD, "Waiting", "no room")
    recorder.stop()
    assert [event["count"] for event in events(client)] == [1]


def test_a_long_message_is_cut(client: KubeClient) -> None:
    """A real server refuses more than 1024 characters."""
    recorder = recorder_of(client).start()
    recorder.record(PODS, POD, "Long", "x" * 5000)
    recorder.stop()
    (event,) = events(client)
    assert len(event["message"]) == MESSAGE_LIMIT
    assert event["message"].endswith("x...")


def test_no_server_never_holds_up_or_fails_the_caller() -> None:
    """Events are best effort: what doesn't fit in the queue is counted and dropped."""
    recorder = recorder_of(KubeClient(Cluster(server="http://127.0.0.1:1")))
    began = time.monotonic()
    for number in range(QUEUE_LIMIT + 7):
        recorder.record(PODS, POD, "Many", str(number))
    assert time.monotonic() - began < 2.0
    assert recorder.dropped == 7
    recorder.stop()


def test_stopping_does_not_wait_for_a_server_that_is_away() -> None:
    """The process has less than a second to end."""
    recorder = recorder_of(KubeClient(Cluster(server="http://127.0.0.1:1"))).start()
    for number in range(100):
        recorder.record(PODS, POD, "Many", str(number))
    began = time.monotonic()
    recorder.stop()
    assert time.monotonic() - began < 1.0
