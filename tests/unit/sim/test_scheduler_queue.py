# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is."""

from __future__ import annotations

import pytest

from gpuslice.sim.scheduler import hints
from gpuslice.sim.scheduler.fit import Filter
from gpuslice.sim.scheduler.queue import PARKED_LIMIT_SECONDS, Queue
from gpuslice.sim.scheduler.views import Pod
from tests.unit.sim.scheduling import node, pod

ROOM = frozenset({Filter.RESOURCES})


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> Queue:
    return Queue(clock=clock, jitter=lambda: 0.5)


def taken(queue: Queue) -> str:
    found = queue.take()
    return found.key.removeprefix("default/") if found else ""


def parked(queue: Queue, name: str = "p", **requests: str) -> Pod:
    waiting = pod(name, **requests)
    queue.put(waiting)
    assert queue.take() is not None
    queue.refused(waiting, ROOM)
    return waiting


def test_first_come_is_first_served(queue: Queue, clock: Clock) -> None:
    """Among pods of one priority."""
    for name in ("a", "b", "c"):
        queue.put(pod(name))
        clock.now += 1
    assert [taken(queue) for _ in range(4)] == ["a", "b", "c", ""]


def test_a_higher_priority_goes_first(queue: Queue) -> None:
    """Whenever it came."""
    queue.put(pod("low"))
    queue.put(pod("high", spec={"priority": 10}))
    assert [taken(queue), taken(queue)] == ["high", "low"]


def test_a_priority_that_falls_counts_at_once(queue: Queue) -> None:
    """Its earlier place says nothing any more."""
    queue.put(pod("a", spec={"priority": 10}))
    queue.put(pod("b", spec={"priority": 5}))
    queue.put(pod("a", spec={"priority": 0}))
    assert [taken(queue), taken(queue), taken(queue)] == ["b", "a", ""]


def test_a_pod_in_flight_is_not_taken_twice(queue: Queue) -> None:
    """Also when the watch tells of it meanwhile."""
    queue.put(pod("a"))
    assert taken(queue) == "a"
    queue.put(pod("a"))
    assert taken(queue) == ""


def test_a_refused_pod_waits_for_a_change_that_could_help(queue: Queue) -> None:
    """And is tried as soon as it comes."""
    parked(queue)
    assert taken(queue) == ""
    queue.happened(hints.room_freed)
    assert taken(queue) == "p"


def test_a_change_while_a_pod_is_tried_counts(queue: Queue) -> None:
    """The decision was made before it, so it must be made again."""
    waiting = pod()
    queue.put(waiting)
    queue.take()
    queue.happened(hints.room_freed)
    queue.refused(waiting, ROOM)
    assert taken(queue) == "p"


@pytest.mark.parametrize("errors", [1, 2, 3, 4])
def test_a_failed_bind_is_tried_again_later_and_no_event_shortens_it(
    queue: Queue, clock: Clock, errors: int
) -> None:
    """1.5 to 2 s, 3 s, 5 s: measured on a real one."""
    waiting = pod()
    queue.put(waiting)
    for pause in (1.75, 3.0, 5.0, 9.0)[:errors]:
        assert taken(queue) == "p"
        queue.chosen(waiting)
        assert queue.failed(waiting) == pause
        queue.happened(hints.anything)
        clock.now += pause - 0.01
        assert taken(queue) == ""
        assert queue.next_wake_seconds() == pytest.approx(0.01)
        clock.now += 0.01
    assert taken(queue) == "p"


def test_the_first_pause_is_between_one_and_a_half_and_two_seconds(clock: Clock) -> None:
    """The stock queue looks once a second, so it depends on the moment."""
    pauses = []
    for jitter in (0.0, 0.999):
        queue = Queue(clock=clock, jitter=lambda jitter=jitter: jitter)  # type: ignore[misc]
        queue.put(pod())
        queue.take()
        pauses.append(queue.failed(pod()))
    assert pauses == [1.5, pytest.approx(2.0, abs=0.001)]


def test_a_refusal_ends_a_row_of_errors(queue: Queue, clock: Clock) -> None:
    """The next error counts as the first."""
    waiting = pod()
    queue.put(waiting)
    queue.take()
    queue.failed(waiting)
    clock.now += 2
    queue.take()
    queue.refused(waiting, ROOM)
    queue.happened(hints.room_freed)
    queue.take()
    assert queue.failed(waiting) == 1.75


def test_a_pod_that_is_gone_is_forgotten_wherever_it_waits(queue: Queue, clock: Clock) -> None:
    """Active, parked, backing off or in flight."""
    for prepare in ("active", "parked", "backing off", "in flight"):
        waiting = pod()
        queue.put(waiting)
        if prepare != "active":
            queue.take()
        if prepare == "parked":
            queue.refused(waiting, ROOM)
        if prepare == "backing off":
            queue.failed(waiting)
        queue.remove(waiting.uid)
        assert len(queue) == 0
        queue.refused(waiting, ROOM)
        assert queue.failed(waiting) is None
        queue.happened(hints.anything)
        clock.now += 100
        assert taken(queue) == ""


def test_a_parked_pod_is_tried_again_after_a_while_in_any_case(queue: Queue, clock: Clock) -> None:
    """The stock scheduler's net for hints that were wrong."""
    parked(queue)
    assert queue.next_wake_seconds() == PARKED_LIMIT_SECONDS
    clock.now += PARKED_LIMIT_SECONDS
    assert taken(queue) == "p"


def test_a_parked_pod_that_changes_itself_is_tried_again(queue: Queue) -> None:
    """It may ask for less now; a mere status doesn't count."""
    parked(queue, cpu="2")
    queue.put(pod("p", cpu="2"))
    assert taken(queue) == ""
    queue.put(pod("p", cpu="1"))
    assert taken(queue) == "p"


@pytest.mark.parametrize(
    ("before", "after", "helps"),
    [
        pytest.param(None, node("n", cpu="4"), True, id="new-node"),
        pytest.param(None, node("n", cpu="1"), False, id="new-but-small"),
        pytest.param(node("n", cpu="2"), node("n", cpu="3"), True, id="more"),
        pytest.param(node("n", cpu="3"), node("n", cpu="2"), False, id="less"),
        pytest.param(node("n", cpu="3"), node("n", cpu="3", memory="9Gi"), False, id="other"),
        pytest.param(
            node("n", cpu="3"), node("n", cpu="3", labels={"a": "b"}), False, id="a-label"
        ),
    ],
)
def test_a_node_helps_a_pod_that_lacks_room_only_with_more_of_what_it_asks(
    queue: Queue,
    before: object,
    after: object,
    helps: bool,  # noqa: FBT001 - a table
) -> None:
    """The hint of the stock resource filter."""
    parked(queue, cpu="2")
    queue.happened(hints.node_changed(before, after))  # type: ignore[arg-type]  # of the table
    assert (taken(queue) == "p") == helps


def test_a_node_helps_a_pod_that_it_refused_by_label_when_the_label_comes(queue: Queue) -> None:
    """And freed room doesn't."""
    waiting = pod(spec={"nodeSelector": {"gpu": "yes"}})
    queue.put(waiting)
    queue.take()
    queue.refused(waiting, frozenset({Filter.AFFINITY}))
    queue.happened(hints.room_freed)
    assert taken(queue) == ""
    queue.happened(hints.node_changed(node("n"), node("n", labels={"gpu": "yes"})))
    assert taken(queue) == "p"
