# SPDX-License-Identifier: Apache-2.0
"""Histories: from bytes to what happens in a cluster, step by step.

A step is six bytes: what is done, to what, the fate of the next request and who moves first, and
three bits for each process that say whether it keeps up meanwhile. Zero is the simplest of each, so
that hypothesis shrinks a history to the few delays and faults that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from hypothesis import strategies as st

from tests.property.placement import podmaking
from tests.property.placement.apiserver import PODS
from tests.property.placement.decisions import Decisions
from tests.property.placement.excuses import Excuse
from tests.property.placement.scheduler import Scheduler
from tests.property.placement.truths import ViolationError
from tests.property.placement.wire import Bind, Fate
from tests.property.placement.world import Scene, World

LEAST_STEPS: Final = 50
MOST_STEPS: Final = 80
STEP_BYTES: Final = 6
SCENE_BYTES: Final = 3

PAUSES: Final = (0.02, 0.06, 0.06, 0.3, 0.6, 1.6, 2.1, 3.2, 6.0, 11.0, 21.0, 59.0, 121.0)

Step = Callable[[World, int], None]


class Watcher(Protocol):
    """A process that watches."""

    def relist(self) -> None:
        """Lose the watches, and begin anew."""


def _nothing(world: World, choice: int) -> None:
    """Only let the processes move."""


def _create(world: World, choice: int) -> None:
    world.create(choice)


def _create_two(world: World, choice: int) -> None:
    world.create(choice)
    world.create(choice)


def _finish(world: World, choice: int) -> None:
    running = list(world.processes.values())
    if running:
        process = running[choice % len(running)]
        kubelet = next(each for each in world.kubelets if each.node == process.node)
        if kubelet.is_up:
            world.say("{} ends by itself", process.uid)
            kubelet.finish(process.uid)


def _delete(world: World, choice: int, *, force: bool = False) -> None:
    stored = world.store.all(PODS)
    if stored:
        key = stored[choice % len(stored)].key
        world.say("{} is deleted{}", key, " by force" if force else "")
        world.delete(key, force=force)


def _force_delete(world: World, choice: int) -> None:
    _delete(world, choice, force=True)


def _pause(world: World, choice: int) -> None:
    seconds = PAUSES[choice % len(PAUSES)]
    world.say("{} s pass", seconds)
    world.advance(seconds)


def _relist(world: World, choice: int) -> None:
    watchers: list[Watcher] = [*world.agents, *world.arbiters, world.scheduler, *world.kubelets]
    watchers[choice % len(watchers)].relist()


def _forget_answer(world: World, choice: int) -> None:
    world.scheduler.forget_answer(choice)


def _restart_scheduler(world: World, choice: int) -> None:
    world.say("the scheduler starts anew")
    world.scheduler = Scheduler(world)


def _arbiter_dies_or_starts(world: World, choice: int) -> None:
    number = choice % len(world.arbiters)
    arbiter = world.arbiters[number]
    world.say("arbiter {} {}", "xy"[number], "dies" if arbiter.is_up else "starts")
    if arbiter.is_up:
        arbiter.kill(lands=bool(choice & 4))
    else:
        arbiter.start()


def _bind(world: World, choice: int, *, by_arbiter: bool) -> None:
    waiting = [each for each in world.store.all(PODS) if podmaking.waits(each.thing)]
    if not waiting:
        return
    stored = waiting[choice % len(waiting)]
    node = list(world.gpus)[choice // 16 % len(world.gpus)]
    bind = Bind(key=stored.key, uid=None, node=node, began=world.now)
    world.say("{} is bound by hand to {}", stored.key, node)
    if by_arbiter:
        world.send(bind, choice)
    else:
        bind.judged, bind.by_arbiter = True, False
        world.wire.binds.append(bind)


def _bind_by_hand(world: World, choice: int) -> None:
    _bind(world, choice, by_arbiter=True)


def _bind_without_arbiter(world: World, choice: int) -> None:
    if world.scene.has_strangers:
        _bind(world, choice, by_arbiter=False)


def _repeat_bind(world: World, choice: int) -> None:
    under_way = [bind for bind in world.wire.binds if bind.by_arbiter]
    if under_way:
        bind = under_way[choice % len(under_way)]
        world.say("the Binding of {} comes twice", bind.key)
        again = Bind(key=bind.key, uid=bind.uid, node=bind.node, began=world.now)
        world.send(again, choice // 8)


def _cordon_or_not(world: World, choice: int) -> None:
    node = list(world.gpus)[choice % len(world.gpus)]
    index = choice // 4 % len(world.gpus[node])
    world.set_cordon(node, index, cordoned=bool(choice & 128))


def _sicken_or_recover(world: World, choice: int) -> None:
    if not world.scene.has_sick:
        return
    number = choice % len(world.agents)
    node = list(world.gpus)[number]
    gpu = world.gpus[node][choice // 4 % len(world.gpus[node])].uuid
    sick_at = world.accounts.of(node).sick_at
    world.say("{} {}", gpu, "recovers" if gpu in world.sick else "is sick")
    if gpu in world.sick:
        world.sick.remove(gpu)
        sick_at[gpu] = world.now
    else:
        world.sick.add(gpu)
        sick_at[gpu] = float("inf")
    world.agents[number].hardware_changed()


def _plugin_dies_or_starts(world: World, choice: int) -> None:
    agent = world.agents[choice % len(world.agents)]
    node = list(world.gpus)[choice % len(world.agents)]
    if not agent.is_up:
        world.say("the plugin of {} starts", node)
        agent.start()
    elif world.scene.has_deaths:
        world.say("the plugin of {} dies", node)
        world.accounts.of(node).break_ = Excuse.SUDDEN_DEATH
        agent.kill(lands=bool(choice & 4))


def _plugin_drains(world: World, choice: int) -> None:
    agent = world.agents[choice % len(world.agents)]
    world.say("the plugin of {} is to end", list(world.gpus)[choice % len(world.agents)])
    agent.drain()


def _kubelet_dies_or_starts(world: World, choice: int) -> None:
    if not world.scene.has_deaths:
        return
    kubelet = world.kubelets[choice % len(world.kubelets)]
    world.say("the kubelet of {} {}", kubelet.node, "dies" if kubelet.is_up else "starts")
    if kubelet.is_up:
        world.accounts.of(kubelet.node).break_ = Excuse.SUDDEN_DEATH
        kubelet.kill()
    else:
        kubelet.start()


_WEIGHTS: Final[tuple[tuple[Step, int], ...]] = (
    (_nothing, 40),
    (_create, 44),
    (_create_two, 12),
    (_finish, 30),
    (_delete, 14),
    (_force_delete, 10),
    (_pause, 34),
    (_relist, 6),
    (_forget_answer, 6),
    (_restart_scheduler, 3),
    (_arbiter_dies_or_starts, 9),
    (_bind_by_hand, 14),
    (_bind_without_arbiter, 3),
    (_repeat_bind, 7),
    (_cordon_or_not, 4),
    (_sicken_or_recover, 4),
    (_plugin_dies_or_starts, 8),
    (_plugin_drains, 4),
    (_kubelet_dies_or_starts, 4),
)
_TABLE: Final = tuple(step for step, weight in _WEIGHTS for _ in range(weight))
assert len(_TABLE) == 256, len(_TABLE)

_FATES: Final = {13: Fate.LOST, 14: Fate.UNANSWERED, 15: Fate.LATE}
_NODES: Final = ((2,), (1, 1), (2, 1), (3,))


@dataclass(frozen=True, slots=True)
class History:
    """A scene and what happens there."""

    scene: bytes
    steps: Sequence[bytes]


def histories() -> st.SearchStrategy[History]:
    """Return the strategy that draws histories."""
    steps = st.lists(
        st.binary(min_size=STEP_BYTES, max_size=STEP_BYTES),
        min_size=LEAST_STEPS,
        max_size=MOST_STEPS,
    )
    return st.builds(History, st.binary(min_size=SCENE_BYTES, max_size=SCENE_BYTES), steps)


def scene_of(drawn: bytes) -> Scene:
    """Return the scene that three bytes mean; half of them are without strangers and deaths."""
    layout, palette, flags = drawn
    return Scene(
        gpus_per_node=_NODES[layout % len(_NODES)],
        palette=podmaking.PALETTES[palette % len(podmaking.PALETTES)],
        fails_closed=flags & 3 != 3,
        has_strangers=flags & 3 == 3,
        has_deaths=flags & 12 == 12,
        has_sick=flags & 48 == 48,
    )


@dataclass(frozen=True, slots=True)
class Ending:
    """How a history went."""

    violation: ViolationError | None
    world: World

    @property
    def pods_run(self) -> int:
        """How many pods came to run."""
        return self.world.runs

    def story(self) -> str:
        """Return what happened, for people."""
        lines = [f"{self.world.scene}"]
        lines += [f"{at - 1000:9.2f}  {text.format(*a)}" for at, text, a in self.world.trace]
        return "\n".join([*lines, f"{self.violation}"])


def play(history: History, decisions: Decisions) -> Ending:
    """Play a history to its quiet end."""
    world = World(scene_of(history.scene), decisions)
    try:
        for kind, choice, order, *modes in history.steps:
            world.wire.fate = _FATES.get(order >> 4, Fate.ARRIVES)
            _TABLE[kind](world, choice)
            world.flow(order, int.from_bytes(modes, "little"))
        world.settle()
        world.check_quiet()
        if history.scene[2] & 64:
            world.clear()
            world.settle()
            world.check_quiet()
    except ViolationError as violation:
        return Ending(violation, world)
    return Ending(None, world)
