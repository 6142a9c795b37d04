# SPDX-License-Identifier: Apache-2.0
"""What is done to both kubelets: steps, drawn at random from what the state allows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

GPUS: Final = ("g0", "g1")
TOKENS_PER_GPU: Final = 6
TOKENS: Final = tuple(f"{gpu}::{n}" for gpu in GPUS for n in range(TOKENS_PER_GPU))

REFUSED_SIZE: Final = 5
"""The plugin answers an Allocate of this many with an error."""
EMPTY_SIZE: Final = 7
"""The plugin answers an Allocate of this many with no container at all."""
DISLIKED_SIZE: Final = 4
"""Where it has opinions, the plugin answers GetPreferredAllocation of this many with an error."""

SIZES: Final = (1, 1, 2, 2, 3, 3, 3, DISLIKED_SIZE, REFUSED_SIZE, 6, EMPTY_SIZE, 20)
MOST_PODS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a pod looks: how many tokens each of its containers asks for."""

    apps: tuple[int, ...] = (0,)
    init: int | None = None
    """Those of its plain init container; None where it has none."""
    sidecar: int | None = None
    is_short: bool = False
    """Whether it ends by itself, after a second."""
    fits: int = 0
    """How much it asks of a resource that a client has patched into the Node."""
    is_lost: bool = False
    """Whether its node selector asks for another node."""

    @property
    def is_exact(self) -> bool:
        """Whether nothing about its tokens is left to chance where the plugin names them all.

        Of more tokens than it needs of its init containers kubelet takes any, without a question.
        """
        return not self.init or all(not app or self.init <= app for app in self.apps[:1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create pods, and bind them past the scheduler; all look the same."""

    group: str
    plan: Plan
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete a pod."""

    pod: str
    by_force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartKubelet:
    """Stop kubelet, change things while it is away, and start it again."""

    is_hard: bool = False
    meanwhile: tuple[Create | Delete, ...] = ()
    loses_checkpoint: bool = False
    plugin_returns: bool = True
    """Whether the plugin registers as soon as it can; otherwise it stays away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reboot:
    """Reboot the node; the plugin stays away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPlugin:
    """End the plugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlugin:
    """Start the plugin, and have it register."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPlugin:
    """End the plugin, then start it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Start the plugin's successor first, and only then end it: a rolling update with surge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sicken:
    """Make just these tokens unhealthy."""

    sick: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    """Ask PodResources for all pods, which also frees what pods left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Patch an amount of a resource that kubelet doesn't know into the Node's capacity."""

    amount: int


Step = (
    Create
    | Delete
    | RestartKubelet
    | Reboot
    | StopPlugin
    | StartPlugin
    | RestartPlugin
    | HandOver
    | Sicken
    | List
    | Publish
)


@dataclass(slots=True, kw_only=True)
class State:
    """What the next step may build on: the same on both sides, as they have just been compared."""

    is_exact: bool
    """Whether the plugin names all tokens, so that both sides hand out the same ones."""
    hand_over_works: bool
    """Whether this kubelet's version keeps a plugin whose predecessor ends."""
    pods: Mapping[str, Plan] = field(default_factory=dict)
    """Those in the API server, by name."""
    has_plugin: bool = False
    knows_resource: bool = False
    """Whether kubelet knows of a plugin, be it away: none has registered yet, or it forgot."""
    forgotten: frozenset[str] = frozenset()
    """The groups of which kubelet knows no tokens, though their pods ask for some and run."""
    is_well: bool = True
    """Whether the plugin lists all tokens as healthy."""
    groups: int = 0


def next_step(rng: Random, state: State) -> Step:
    """Draw a step."""
    if not state.knows_resource and rng.random() < 0.6:
        return StartPlugin()
    if len(state.pods) >= MOST_PODS:
        return _delete(rng, state)
    if not state.has_plugin and rng.random() < 0.5:
        return StartPlugin()
    kinds: tuple[tuple[Callable[[Random, State], Step], float], ...] = (
        (create, 10),
        (_delete, 4 if state.pods else 0),
        (_restart, 2.5),
        (_reboot, 0.4),
        (_move_plugin, 2.5 if state.has_plugin else 0),
        (_sicken, 1.5 if state.has_plugin else 0),
        (_list, 1),
        (_publish, 1),
    )
    (draw,) = rng.choices([draw for draw, _ in kinds], [weight for _, weight in kinds])
    return draw(rng, state)


def create(rng: Random, state: State) -> Create:
    """Draw pods to be made."""
    state.groups += 1
    group = f"p{state.groups}"
    plan = rng.choices(
        (_plain, _short, _pair, _init, _sidecar, _fit, _other), (8, 2, 2, 2, 1, 2, 1)
    )[0](rng)
    several = plan == Plan(apps=plan.apps) and len(plan.apps) == 1 and rng.random() < 0.3
    return Create(group=group, plan=plan, count=rng.choice((2, 3)) if several else 1)


def _plain(rng: Random) -> Plan:
    return Plan(apps=(rng.choice(SIZES),))


def _short(rng: Random) -> Plan:
    return Plan(apps=(rng.choice(SIZES),), is_short=True)


def _pair(rng: Random) -> Plan:
    return Plan(apps=(rng.choice(SIZES), rng.choice((0, *SIZES))))


def _init(rng: Random) -> Plan:
    return Plan(apps=(rng.choice((0, 1, 2, 3)),), init=rng.choice((1, 2, 3)))


def _sidecar(rng: Random) -> Plan:
    return Plan(apps=(rng.choice((0, 1, 2)),), sidecar=rng.choice((1, 2, 3)))


def _fit(rng: Random) -> Plan:
    return Plan(apps=(rng.choice((0, 1, 2)),), fits=rng.choice((1, 1, 2)))


def _other(rng: Random) -> Plan:
    return Plan(apps=(rng.choice((0, 2)),), is_lost=rng.random() < 0.5)


def _delete(rng: Random, state: State) -> Delete:
    return Delete(pod=rng.choice(sorted(state.pods)), by_force=rng.random() < 0.3)


def _list(rng: Random, state: State) -> List:
    return List()


def _publish(rng: Random, state: State) -> Publish:
    return Publish(amount=rng.choice((0, 1, 2, 3)))


def _move_plugin(rng: Random, state: State) -> Step:
    return rng.choice((StopPlugin(), RestartPlugin(), RestartPlugin(), HandOver()))


def _forgotten(state: State) -> list[str]:
    """The pods of whose tokens kubelet knows nothing."""
    return [name for name in sorted(state.pods) if name.partition(".")[0] in state.forgotten]


def _reboot(rng: Random, state: State) -> Step:
    if forgotten := _forgotten(state):
        return Delete(pod=rng.choice(forgotten))
    return Reboot()


def _restart(rng: Random, state: State) -> Step:
    """Draw a restart whose outcome isn't a race.

    The plugin's return would race with pods that need it then: those that came while kubelet was
    away, and those with an init container that holds tokens. That one doesn't run, so kubelet looks
    at their health again.

    Where kubelet knows nothing of a pod's tokens it looks whether its Node has room for them, and
    what it finds there races with the first status that it writes. So such pods go first.
    """
    if forgotten := _forgotten(state):
        return Delete(pod=rng.choice(forgotten))
    loses = state.has_plugin and state.is_well and rng.random() < 0.15
    meanwhile: tuple[Create | Delete, ...] = ()
    if rng.random() < 0.4:
        changes: list[Create | Delete] = [] if loses else [create(rng, state)]
        if state.pods:
            changes.insert(0, _delete(rng, state))
        meanwhile = tuple(rng.sample(changes, rng.randint(0, len(changes))))
    plans = (*state.pods.values(), *(each.plan for each in meanwhile if isinstance(each, Create)))
    races = (
        loses
        or any(plan.init for plan in plans)
        or any(isinstance(change, Create) for change in meanwhile)
    )
    return RestartKubelet(
        is_hard=rng.random() < 0.5,
        meanwhile=meanwhile,
        loses_checkpoint=loses,
        plugin_returns=state.has_plugin and not races and rng.random() < 0.8,
    )


def _sicken(rng: Random, state: State) -> Sicken:
    if not state.is_exact or rng.random() < 0.2:
        return Sicken(sick=rng.choice(((), TOKENS)))
    gpu = rng.choice(GPUS)
    of_gpu = tuple(token for token in TOKENS if token.startswith(f"{gpu}::"))
    return Sicken(sick=rng.choice(((), of_gpu, of_gpu[:1], of_gpu[3:])))
