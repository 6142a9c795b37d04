# SPDX-License-Identifier: Apache-2.0
"""The scheduler on the embedded API server."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import ConflictError, KubeError
from gpuslice.runtime.kube.resources import EVENTS, NODES, PODS
from gpuslice.runtime.kube.watch import WatchCache
from gpuslice.sim.apiserver.server import ApiServer
from gpuslice.sim.scheduler.scheduler import Scheduler

SOON = 5.0
SLICES = "nvidia.com/gpu-slice"
FIT = "gpuslice.dev/fit-0.6"


class Denying(KubeClient):
    """A client whose binds an arbiter denies so many times."""

    denials = 0
    is_answer_lost = False

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.binds: list[tuple[str, float]] = []
        self.released = threading.Event()
        self.released.set()

    def bind(self, pod: Mapping[str, Any], node: str, *, timeout_seconds: float = 10.0) -> None:
        self.binds.append((pod["metadata"]["name"], time.monotonic()))
        self.released.wait(SOON)
        if self.is_answer_lost:
            super().bind(pod, node, timeout_seconds=timeout_seconds)
            raise KubeError("the answer was lost")
        if self.denials > 0:
            self.denials -= 1
            raise ConflictError(
                'admission webhook "arbiter.gpuslice.dev" denied the request: no single GPU',
                code=409,
            )
        super().bind(pod, node, timeout_seconds=timeout_seconds)


@pytest.fixture
def served() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def client(served: ApiServer, tmp_path: Path) -> Denying:
    return Denying(config.load(served.kubeconfig(tmp_path / "kubeconfig")))


@pytest.fixture
def pods(client: Denying) -> Iterator[WatchCache]:
    cache = WatchCache(client, PODS).start()
    assert cache.wait_ready(SOON)
    yield cache
    cache.stop()


@pytest.fixture
def scheduler(client: Denying) -> Iterator[Scheduler]:
    running = Scheduler(client, rng=random.Random(1)).start()
    assert running.wait_ready(SOON)
    yield running
    running.stop()


def add_node(client: KubeClient, name: str, **room: str) -> None:
    given = {key.replace("slices", SLICES).replace("fit", FIT): text for key, text in room.items()}
    allocatable = {"cpu": "8", "memory": "16Gi", "pods": "110"} | given
    client.create(NODES, {"metadata": {"name": name}, "status": {"allocatable": allocatable}})


def add_pod(client: KubeClient, name: str, spec: Any = None, **asked: str) -> dict[str, Any]:
    given = {key.replace("slices", SLICES).replace("fit", FIT): text for key, text in asked.items()}
    container = {"name": "main", "image": "x", "resources": {"limits": given, "requests": given}}
    return client.create(
        PODS,
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [container]} | (spec or {}),
        },
    )


def node_of(pods: WatchCache, name: str) -> str:
    found = pods.get(f"default/{name}")
    return (found["spec"].get("nodeName") or "") if found else ""


def condition(pods: WatchCache, name: str) -> dict[str, Any]:
    found = pods.get(f"default/{name}") or {}
    for each in (found.get("status") or {}).get("conditions") or ():
        if each["type"] == "PodScheduled":
            return dict(each)
    return {}


def said(client: KubeClient, name: str) -> list[tuple[str, str]]:
    return [
        (event["reason"], event["message"])
        for event in client.list(EVENTS, namespace="default")
        if event["involvedObject"]["name"] == name
    ]


def eventually(check: Callable[[], object]) -> bool:
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.usefixtures("scheduler")
def test_pods_fill_nodes_by_sums_and_the_rest_wait_with_words(
    client: Denying, pods: WatchCache
) -> None:
    """Two of 60 slices on 2 x 100, the third waits: sums say yes, the fit says no."""
    add_node(client, "a", slices="200", fit="2")
    for name in ("p", "q", "r"):
        add_pod(client, name, slices="60", fit="1")
    # The pods may be told of before the node is.
    assert pods.wait_for(lambda: "fit-0.6" in condition(pods, "r").get("message", ""), SOON)
    assert pods.wait_for(lambda: node_of(pods, "p") and node_of(pods, "q"), SOON)
    assert node_of(pods, "r") == ""
    assert condition(pods, "r")["message"] == (
        "0/1 nodes are available: 1 Insufficient gpuslice.dev/fit-0.6. no new claims to "
        "deallocate, preemption: 0/1 nodes are available: "
        "1 No preemption victims found for incoming pod."
    )
    assert eventually(
        lambda: ("Scheduled", "Successfully assigned default/p to a") in said(client, "p")
    )
    assert eventually(lambda: [reason for reason, _ in said(client, "r")] == ["FailedScheduling"])


@pytest.mark.usefixtures("scheduler")
@pytest.mark.parametrize("how", ["deleted", "ended", "node-grows", "node-joins"])
def test_a_waiting_pod_is_placed_as_soon_as_something_helps(
    client: Denying, pods: WatchCache, how: str
) -> None:
    """Whatever made room."""
    add_node(client, "a", slices="100", fit="1")
    first = add_pod(client, "first", slices="60", fit="1")
    assert pods.wait_for(lambda: node_of(pods, "first"), SOON)
    add_pod(client, "second", slices="60", fit="1")
    assert pods.wait_for(lambda: condition(pods, "second").get("status") == "False", SOON)
    if how == "deleted":
        client.delete(PODS, "first", namespace="default", grace_seconds=0)
    elif how == "ended":
        ended = {"metadata": {"uid": first["metadata"]["uid"]}, "status": {"phase": "Succeeded"}}
        client.patch(PODS, "first", ended, namespace="default", status=True)
    elif how == "node-grows":
        more = {"status": {"allocatable": {SLICES: "200", FIT: "2"}}}
        client.patch(NODES, "a", more, status=True)
    else:
        add_node(client, "b", slices="100", fit="1")
    began = time.monotonic()
    assert pods.wait_for(lambda: node_of(pods, "second"), SOON)
    assert time.monotonic() - began < 1.0
    assert condition(pods, "second")["status"] == "True"


def test_a_denied_pod_waits_and_is_tried_again(
    client: Denying, pods: WatchCache, scheduler: Scheduler
) -> None:
    """1.5 to 2 s after the denial, whatever happens meanwhile; the reason is in its event."""
    client.denials = 1
    add_node(client, "a", slices="100", fit="1")
    add_pod(client, "p", slices="60", fit="1")
    assert pods.wait_for(lambda: condition(pods, "p").get("reason") == "SchedulerError", SOON)
    assert "no single GPU" in condition(pods, "p")["message"]
    client.patch(NODES, "a", {"status": {"allocatable": {SLICES: "200"}}}, status=True)
    assert pods.wait_for(lambda: node_of(pods, "p"), SOON)
    (_, first), (_, second) = client.binds
    assert 1.4 < second - first < 2.5
    words = 'running Bind plugin "DefaultBinder": admission webhook "arbiter.gpuslice.dev" denied'
    assert any(message.startswith(words) for _, message in said(client, "p"))


def test_what_a_bind_under_way_takes_is_not_given_twice(
    client: Denying, pods: WatchCache, scheduler: Scheduler
) -> None:
    """Decisions go on while the arbiter lets a bind wait, and count its pod."""
    client.released.clear()
    add_node(client, "a", slices="100", fit="1")
    add_pod(client, "p", slices="60", fit="1")
    assert eventually(lambda: len(client.binds) == 1)
    add_pod(client, "q", slices="60", fit="1")
    assert pods.wait_for(lambda: condition(pods, "q").get("reason") == "Unschedulable", SOON)
    client.released.set()
    assert pods.wait_for(lambda: node_of(pods, "p"), SOON)


def test_what_a_denied_bind_held_is_free_for_others_at_once(
    client: Denying, pods: WatchCache, scheduler: Scheduler
) -> None:
    """The denied pod backs off; the one that waited for its room doesn't."""
    client.released.clear()
    client.denials = 1
    add_node(client, "a", slices="100", fit="1")
    add_pod(client, "p", slices="60", fit="1")
    assert eventually(lambda: len(client.binds) == 1)
    add_pod(client, "q", slices="60", fit="1")
    assert pods.wait_for(lambda: condition(pods, "q").get("reason") == "Unschedulable", SOON)
    began = time.monotonic()
    client.released.set()
    assert pods.wait_for(lambda: node_of(pods, "q"), SOON)
    assert time.monotonic() - began < 1.0


def test_a_lost_answer_of_a_bind_that_worked_undoes_nothing(
    client: Denying, pods: WatchCache, scheduler: Scheduler
) -> None:
    """The watch shows the pod bound, so its room stays counted."""
    client.is_answer_lost = True
    add_node(client, "a", slices="100", fit="1")
    add_pod(client, "p", slices="60", fit="1")
    assert pods.wait_for(lambda: node_of(pods, "p"), SOON)
    add_pod(client, "q", slices="60", fit="1")
    assert pods.wait_for(lambda: condition(pods, "q").get("reason") == "Unschedulable", SOON)
    assert [name for name, _ in client.binds] == ["p"]


@pytest.mark.usefixtures("scheduler")
def test_other_schedulers_pods_and_gated_ones_are_left_alone(
    client: Denying, pods: WatchCache
) -> None:
    """Until a gate is taken away."""
    add_node(client, "a")
    add_pod(client, "others", {"schedulerName": "kai-scheduler"})
    add_pod(client, "gated", {"schedulingGates": [{"name": "queue"}]})
    add_pod(client, "mine")
    assert pods.wait_for(lambda: node_of(pods, "mine"), SOON)
    assert (node_of(pods, "others"), node_of(pods, "gated")) == ("", "")
    client.patch(PODS, "gated", {"spec": {"schedulingGates": None}}, namespace="default")
    assert pods.wait_for(lambda: node_of(pods, "gated"), SOON)
    assert node_of(pods, "others") == ""


@pytest.mark.usefixtures("scheduler")
def test_the_more_important_pod_goes_first(client: Denying, pods: WatchCache) -> None:
    """When room comes for one."""
    for name, priority in (("low", 0), ("high", 100)):
        add_pod(client, name, {"priority": priority}, slices="60", fit="1")
        assert pods.wait_for(lambda name=name: condition(pods, name), SOON)  # type: ignore[misc]
    add_node(client, "a", slices="100", fit="1")
    assert pods.wait_for(lambda: node_of(pods, "high"), SOON)
    assert node_of(pods, "low") == ""


def test_a_new_one_counts_what_an_old_one_placed(client: Denying, pods: WatchCache) -> None:
    """All that it knows is in the API server."""
    add_node(client, "a", slices="100", fit="1")
    first = Scheduler(client).start()
    add_pod(client, "p", slices="60", fit="1")
    assert pods.wait_for(lambda: node_of(pods, "p"), SOON)
    began = time.monotonic()
    first.stop()
    assert time.monotonic() - began < 1.0
    second = Scheduler(client).start()
    add_pod(client, "q", slices="60", fit="1")
    assert pods.wait_for(lambda: condition(pods, "q").get("reason") == "Unschedulable", SOON)
    second.stop()


@pytest.mark.usefixtures("scheduler")
def test_a_burst_is_placed_whole(client: Denying, pods: WatchCache) -> None:
    """100 pods on two nodes, every one counted."""
    for name in ("a", "b"):
        add_node(client, name, slices="500", fit="50")
    for number in range(100):
        add_pod(client, f"p{number}", slices="10", fit="1")
    assert pods.wait_for(
        lambda: all(node_of(pods, f"p{number}") for number in range(100)), 10 * SOON
    )
    placed = [node_of(pods, f"p{number}") for number in range(100)]
    assert (placed.count("a"), placed.count("b")) == (50, 50)


def test_it_runs_as_a_process_of_its_own(
    served: ApiServer, client: Denying, pods: WatchCache, tmp_path: Path
) -> None:
    """And ends on SIGTERM."""
    path = served.kubeconfig(tmp_path / "its-own")
    command = [sys.executable, "-m", "gpuslice.sim.scheduler", "--kubeconfig", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        add_node(client, "a")
        add_pod(client, "p")
        assert pods.wait_for(lambda: node_of(pods, "p"), 2 * SOON)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(5) == 0
    finally:
        process.kill()
        process.wait()
