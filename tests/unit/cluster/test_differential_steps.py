# SPDX-License-Identifier: Apache-2.0
"""Random steps are the same for the same seed, and none has an outcome that is a race."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.cluster.differential.steps import (
    Create,
    Delete,
    Plan,
    RestartKubelet,
    State,
    Step,
    next_step,
)

PLAN_WITH_INIT = Plan(apps=(1,), init=1)
DRAWS = 400


def _draws(state: State, seed: int = 7) -> Iterator[Step]:
    rng = Random(seed)
    for _ in range(DRAWS):
        yield next_step(rng, state)


def _state(**more: object) -> State:
    fields: dict[str, object] = {
        "is_exact": True,
        "hand_over_works": False,
        "has_plugin": True,
        "knows_resource": True,
    }
    return State(**(fields | more))  # type: ignore[arg-type] # mixed values


def test_the_same_seed_draws_the_same_steps() -> None:
    assert list(_draws(_state())) == list(_draws(_state()))
    assert list(_draws(_state())) != list(_draws(_state(), seed=8))


def test_every_kind_of_step_is_drawn() -> None:
    drawn = {
        type(step).__name__
        for state in (_state(pods={"p1.0": Plan()}), _state(has_plugin=False))
        for step in _draws(state)
    }
    assert drawn == {kind.__name__ for kind in Step.__args__}


def test_a_full_node_loses_a_pod_next() -> None:
    state = _state(pods={f"p{number}.0": Plan() for number in range(6)})
    assert {type(step) for step in _draws(state)} == {Delete}


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(_state(pods={"p1.0": PLAN_WITH_INIT}), id="init container with tokens"),
        pytest.param(_state(has_plugin=False), id="no plugin"),
    ],
)
def test_the_plugin_does_not_return_in_a_restart_where_that_would_race(state: State) -> None:
    restarts = [step for step in _draws(state) if isinstance(step, RestartKubelet)]
    assert restarts
    assert not any(step.plugin_returns for step in restarts)


def test_the_plugin_does_not_return_beside_pods_that_come_meanwhile() -> None:
    for step in _draws(_state(pods={"p1.0": Plan()})):
        if isinstance(step, RestartKubelet) and step.plugin_returns:
            assert not any(isinstance(change, Create) for change in step.meanwhile)
            assert not step.loses_checkpoint


def test_pods_of_forgotten_tokens_go_before_a_restart() -> None:
    state = _state(pods={"p1.0": Plan(apps=(2,))}, forgotten=frozenset({"p1"}))
    drawn = {type(step) for step in _draws(state)}
    assert RestartKubelet not in drawn
    assert Delete in drawn


@pytest.mark.parametrize(
    ("plan", "is_exact"),
    [
        pytest.param(Plan(apps=(3,)), True, id="no init container"),
        pytest.param(Plan(apps=(3,), init=2), True, id="all of the init container's are reused"),
        pytest.param(Plan(apps=(2,), init=3), False, id="any of the init container's is taken"),
        pytest.param(Plan(apps=(0,), init=3), True, id="none of the init container's is taken"),
    ],
)
def test_a_plan_is_exact_where_kubelet_has_no_choice(plan: Plan, *, is_exact: bool) -> None:
    assert is_exact == plan.is_exact
