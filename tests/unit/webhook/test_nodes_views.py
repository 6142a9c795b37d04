# SPDX-License-Identifier: Apache-2.0
"""When a Node's fits may be believed to have reached kubelet."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, cast

import pytest

from gpuslice.contract.names import NodeName
from gpuslice.runtime.kube.client import KubeClient
from webhook.nodes import NodeViews

HALF = "gpuslice.dev/fit-0.5"
NODE = NodeName("node-a")


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def views(clock: Clock) -> NodeViews:
    nobody = cast("KubeClient", None)
    return NodeViews(nobody, hold_seconds=0.05, clock=clock, sleep=clock.sleep)


VERSIONS = iter(range(1, 10_000))


def show(views: NodeViews, ledger: int, **fits: int) -> None:
    allocatable: Mapping[str, Any] = {
        f"gpuslice.dev/fit-{share.removeprefix('f').replace('_', '.')}": str(value)
        for share, value in fits.items()
    }
    views.cache.put_back(
        {
            "metadata": {
                "name": NODE,
                "uid": "n",
                "resourceVersion": str(next(VERSIONS)),
                "annotations": {"gpuslice.dev/ledger": str(ledger)},
            },
            "status": {"allocatable": {"cpu": "8", **allocatable}},
        }
    )


def test_a_version_that_is_there_and_no_fresh_rise_answer_at_once(
    views: NodeViews, clock: Clock
) -> None:
    show(views, 7, f0_5=2)
    clock.now += 1
    assert views.wait_until_shown(NODE, 7, HALF, 2.0)
    assert clock.slept == []


def test_a_fresh_rise_is_held(views: NodeViews, clock: Clock) -> None:
    show(views, 7, f0_5=1)
    clock.now += 1
    show(views, 8, f0_5=2)
    clock.now += 0.02
    assert views.wait_until_shown(NODE, 8, HALF, 2.0)
    assert clock.slept == [pytest.approx(0.03)]


def test_a_fall_and_anothers_rise_are_not_held(views: NodeViews, clock: Clock) -> None:
    show(views, 7, f0_5=2, f0_1=1)
    clock.now += 1
    show(views, 8, f0_5=1, f0_1=5)
    assert views.wait_until_shown(NODE, 8, HALF, 2.0)
    assert clock.slept == []


def test_a_rise_is_remembered_over_later_looks(views: NodeViews, clock: Clock) -> None:
    show(views, 7, f0_5=1)
    clock.now += 0.01
    show(views, 8, f0_5=1)
    assert views.wait_until_shown(NODE, 8, HALF, 2.0)
    assert clock.slept == [pytest.approx(0.04)]


def test_a_fit_that_comes_back_has_risen(views: NodeViews, clock: Clock) -> None:
    show(views, 7, f0_5=1)
    clock.now += 1
    show(views, 8, f0_5=0)
    show(views, 9, f0_5=1)
    assert views.wait_until_shown(NODE, 9, HALF, 2.0)
    assert clock.slept == [pytest.approx(0.05)]


@pytest.mark.parametrize(
    ("ledger", "fits"),
    [
        pytest.param(6, {"f0_5": 2}, id="an older ledger"),
        pytest.param(7, {"f0_5": 0}, id="no room, so not even the claim"),
        pytest.param(7, {"f0_1": 2}, id="not that fit"),
    ],
)
def test_what_is_not_shown_is_no_answer(
    views: NodeViews, clock: Clock, ledger: int, fits: dict[str, int]
) -> None:
    show(views, ledger, **fits)
    clock.now += 1
    assert not views.wait_until_shown(NODE, 7, HALF, 0.0)
    assert not views.wait_until_shown(NodeName("unknown"), 0, HALF, 0.0)


def test_a_hold_longer_than_the_wait_is_no_answer(views: NodeViews, clock: Clock) -> None:
    show(views, 7, f0_5=1)
    assert not views.wait_until_shown(NODE, 7, HALF, 0.01)


def test_a_waiter_is_woken_by_the_node() -> None:
    views = NodeViews(cast("KubeClient", None), hold_seconds=0.0)
    answers: list[bool] = []
    waiter = threading.Thread(
        target=lambda: answers.append(views.wait_until_shown(NODE, 8, HALF, 10.0))
    )
    show(views, 7, f0_5=1)
    waiter.start()
    show(views, 8, f0_5=1)
    waiter.join(5)
    assert answers == [True]
