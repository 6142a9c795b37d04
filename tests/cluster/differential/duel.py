# SPDX-License-Identifier: Apache-2.0
"""One sequence on both sides: after each step everything that can be seen must become equal."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.cluster.harness.paths import say

from . import plugin, steps
from .hosts import Host
from .seen import Seen, look
from .side import Side
from .steps import Create, Plan, State, Step

EQUAL_SECONDS = 15.0
"""Both sides get this long after a step: statuses are written once a second, and machines lag."""
CHECKS_OF_A_SECOND = 4
ABSENT = "(absent)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where the embedded kubelet wasn't as the real one."""

    sequence: str
    preference: str
    history: tuple[Step, ...]
    """All steps up to the one after which they differed."""
    values: Mapping[str, tuple[Any, Any]]
    """What differed -> (real, sim)."""

    def __str__(self) -> str:
        lines = [
            f"sequence {self.sequence}, the plugin {self.preference}; step {len(self.history)}:"
        ]
        lines += [f"    {number + 1:2} {step}" for number, step in enumerate(self.history)]
        for key, (real, sim) in sorted(self.values.items()):
            lines += [f"  {key}", f"    real: {real}", f"    sim:  {sim}"]
        return "\n".join(lines)


def play(
    real: Host, sim: Host, *, sequence: str, seed: int, length: int, hand_over_works: bool
) -> Difference | None:
    """Play a sequence.

    Returns:
        The first difference, which ends it; None where there is none.
    """
    rng = Random(seed)
    preference = rng.choice((plugin.EXACT, *plugin.PREFERENCES))
    is_exact = preference == plugin.EXACT
    sides = tuple(Side(host, sequence=sequence, preference=preference) for host in (real, sim))
    state = State(is_exact=is_exact, hand_over_works=hand_over_works)
    plans: dict[str, Plan] = {}
    history: list[Step] = []
    found = None
    if os.environ.get("DIFFERENTIAL_VERBOSE"):
        say(f"  {sequence}: the plugin {preference}")
    with ThreadPoolExecutor(len(sides)) as pool:
        while len(history) < length and found is None:
            step = steps.next_step(rng, state)
            history.append(step)
            if os.environ.get("DIFFERENTIAL_VERBOSE"):
                say(f"  {sequence}: {step}")
            plans |= _plans(step)
            list(pool.map(Side.take, sides, (step, step)))
            lists = isinstance(step, steps.List)
            if values := _differing(sides, plans, state, lists=lists):
                found = Difference(
                    sequence=sequence,
                    preference=preference,
                    history=tuple(history),
                    values=values,
                )
            _advance(state, step, plans, sides[0])
        list(pool.map(Side.clean_up, sides))
    return found


def _plans(step: Step) -> dict[str, Plan]:
    changes = step.meanwhile if isinstance(step, steps.RestartKubelet) else (step,)
    return {each.group: each.plan for each in changes if isinstance(each, Create)}


def _differing(
    sides: tuple[Side, ...], plans: Mapping[str, Plan], state: State, *, lists: bool
) -> Mapping[str, tuple[Any, Any]]:
    """Return what stays different."""
    deadline = time.monotonic() + EQUAL_SECONDS
    while True:
        real, sim = (look(side, plans, is_exact=state.is_exact, lists=lists) for side in sides)
        values = _compare(real, sim)
        if not values or time.monotonic() > deadline:
            return values
        time.sleep(1 / CHECKS_OF_A_SECOND)


def _compare(real: Seen, sim: Seen) -> dict[str, tuple[Any, Any]]:
    both = {key: (real.get(key, ABSENT), sim.get(key, ABSENT)) for key in real.keys() | sim.keys()}
    return {key: values for key, values in both.items() if values[0] != values[1]}


def _advance(state: State, step: Step, plans: Mapping[str, Plan], real: Side) -> None:
    """Bring the state up to date: both sides are as `real` is."""
    state.pods = {called: plans[real.names[name]] for called, name in real.called.items()}
    if isinstance(step, steps.RestartKubelet) and step.loses_checkpoint:
        state.knows_resource = False
        state.forgotten = frozenset(plans)
    if not state.knows_resource:
        state.forgotten |= _plans(step).keys()
    match step:
        case steps.StartPlugin() | steps.RestartPlugin():
            state.has_plugin = state.knows_resource = True
        case steps.StopPlugin() | steps.Reboot():
            state.has_plugin = False
        case steps.RestartKubelet():
            state.has_plugin = step.plugin_returns
        case steps.HandOver():
            state.has_plugin = state.hand_over_works
        case steps.Sicken():
            state.is_well = not step.sick
        case _:
            pass
