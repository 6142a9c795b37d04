# SPDX-License-Identifier: Apache-2.0
"""What reaches the scheduler late or twice, played step by step without its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.endpoint import Cluster
from gpuslice.runtime.kube.errors import ConflictError
from gpuslice.runtime.kube.objects import Change
from gpuslice.sim.scheduler.scheduler import Scheduler
from gpuslice.sim.scheduler.words_writer import WordsWriter
from tests.unit.sim.scheduling import build_node, build_pod, pod

SOON = 5.0
Json = dict[str, Any]


class Bench(KubeClient):
    """A client without a server: binds work unless told otherwise, and patches wait."""

    def __init__(self) -> None:
        super().__init__(Cluster(server="http://127.0.0.1:1"))
        self.is_denying = False
        self.at_bind: Callable[[], object] = lambda: None
        self.patched: list[str] = []
        self.has_begun = threading.Event()
        self.go_on = threading.Event()

    def bind(self, pod: Mapping[str, Any], node: str, *, timeout_seconds: float = 10.0) -> None:
        self.at_bind()
        if self.is_denying:
            raise ConflictError("denied", code=409)

    def patch(self, resource: Any, name: str, patch: Any, **_: Any) -> Json:
        self.has_begun.set()
        assert self.go_on.wait(SOON)
        self.patched.append(patch["status"]["conditions"][0]["message"])
        return {}


@pytest.fixture
def client() -> Bench:
    return Bench()


@pytest.fixture
def scheduler(client: Bench) -> Scheduler:
    told = Scheduler(client)
    told._node_told(Change.ADDED, None, build_node("n"))
    return told


def bind_next(scheduler: Scheduler) -> None:
    """Take the next pod, decide, and let its bind end."""
    waiting = scheduler._queue.take()
    assert waiting is not None
    scheduler._decide(waiting)
    scheduler._binders.shutdown(wait=True)


def test_news_from_before_a_bind_does_not_queue_the_pod_again(scheduler: Scheduler) -> None:
    """The watch still tells of the time when it waited: a status that was written."""
    waiting = build_pod("p", cpu="1")
    scheduler._pod_told(Change.ADDED, None, waiting)
    bind_next(scheduler)
    scheduler._pod_told(Change.MODIFIED, waiting, waiting | {"status": {"phase": "Pending"}})
    assert len(scheduler._queue) == 0
    assert scheduler._accounts.node_of("uid-p") == "n"


def test_a_pod_deleted_while_its_bind_fails_is_forgotten(
    client: Bench, scheduler: Scheduler
) -> None:
    """Its room is free, and it waits for nothing."""
    client.is_denying = True
    waiting = build_pod("p", cpu="1")
    scheduler._pod_told(Change.ADDED, None, waiting)
    taken = scheduler._queue.take()
    assert taken is not None
    scheduler._accounts.place(taken, "n")
    scheduler._queue.chosen(taken)
    scheduler._pod_told(Change.DELETED, waiting, None)
    scheduler._bind(taken, "n")
    assert len(scheduler._queue) == 0
    assert scheduler._accounts.node_of("uid-p") == ""
    assert set(scheduler._accounts.used("n").values()) == {0}


def test_a_bind_that_fails_after_the_watch_showed_it_undoes_nothing(
    client: Bench, scheduler: Scheduler
) -> None:
    """The answer was lost, the bind was not."""
    client.is_denying = True
    waiting = build_pod("p", cpu="1")
    scheduler._pod_told(Change.ADDED, None, waiting)
    taken = scheduler._queue.take()
    assert taken is not None
    scheduler._accounts.place(taken, "n")
    scheduler._queue.chosen(taken)
    bound = build_pod("p", spec={"nodeName": "n"}, cpu="1")
    scheduler._pod_told(Change.MODIFIED, waiting, bound)
    scheduler._bind(taken, "n")
    assert scheduler._accounts.node_of("uid-p") == "n"


def test_words_under_way_land_before_a_bind_begins(client: Bench) -> None:
    """Else they would say of a placed pod that it waits; and later ones are dropped."""
    words = WordsWriter(client)
    words.start()
    words.say(pod("p"), "Unschedulable", "first")
    assert client.has_begun.wait(SOON)
    words.say(pod("p"), "Unschedulable", "second")
    hushed = threading.Event()

    def hush() -> None:
        words.hush("uid-p")
        hushed.set()

    threading.Thread(target=hush, daemon=True).start()
    assert not hushed.wait(0.1)
    client.go_on.set()
    assert hushed.wait(SOON)
    assert client.patched == ["first"]
    words.stop()


def test_a_bind_begins_with_nothing_left_to_say(client: Bench, scheduler: Scheduler) -> None:
    """The words of an earlier try are out of date now."""
    waiting = build_pod("p", cpu="1")
    scheduler._pod_told(Change.ADDED, None, waiting)
    scheduler._words.say(pod("p"), "Unschedulable", "of an earlier try")
    seen: list[Json] = []
    client.at_bind = lambda: seen.append(dict(scheduler._words._waiting))
    bind_next(scheduler)
    assert seen == [{}]


def test_the_same_words_are_written_once(client: Bench) -> None:
    """A pod may be tried many times for one reason."""
    client.go_on.set()
    words = WordsWriter(client)
    for message in ("a", "a", "b"):
        words.say(pod("p"), "Unschedulable", message)
    words.say(pod("q"), "Unschedulable", "c")
    words.start()
    words.say(pod("last"), "Unschedulable", "d")
    with words._changed:
        assert words._changed.wait_for(lambda: "d" in client.patched, SOON)
    words.stop()
    assert client.patched == ["b", "c", "d"]
