# SPDX-License-Identifier: Apache-2.0
"""Laws of the scheduler: no node is overfilled, no pod is lost, the best is chosen."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuslice.sim.scheduler import hints
from gpuslice.sim.scheduler.accounts import Accounts
from gpuslice.sim.scheduler.cycle import Chosen, Unschedulable, decide
from gpuslice.sim.scheduler.fit import Filter, refusal
from gpuslice.sim.scheduler.queue import Queue
from gpuslice.sim.scheduler.views import Pod
from tests.unit.sim.scheduling import node, pod

# How fast examples are made depends on who else uses the machine.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SLICES = "nvidia.com__gpu_slice"


@UNHURRIED
@given(
    rooms=st.lists(st.integers(0, 200), min_size=1, max_size=4),
    asks=st.lists(st.integers(1, 120), max_size=20),
    pick=st.randoms(use_true_random=False),
)
def test_sums_never_exceed_a_node_and_nobody_waits_who_fits(
    rooms: list[int], asks: list[int], pick: Any
) -> None:
    """Whatever the order, and whatever the choice among equals."""
    nodes = [node(f"n{at}", **{SLICES: str(room)}) for at, room in enumerate(rooms)]
    accounts = Accounts()
    left = dict(zip((each.name for each in nodes), rooms, strict=True))
    for number, asked in enumerate(asks):
        asking = pod(f"p{number}", **{SLICES: str(asked)})
        decision = decide(asking, nodes, accounts, pick.choice)
        if isinstance(decision, Chosen):
            left[decision.node] -= asked
            accounts.place(asking, decision.node)
        else:
            assert all(asked > room for room in left.values())
    assert min(left.values()) >= 0


@UNHURRIED
@given(
    asks=st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["a", "b"])), max_size=15),
    data=st.data(),
)
def test_accounts_forget_all_that_they_counted(
    asks: list[tuple[int, str]], data: st.DataObject
) -> None:
    """Placed, moved, removed in any order: sums end at zero."""
    accounts = Accounts()
    pods = [pod(f"p{at}", cpu=str(asked)) for at, (asked, _) in enumerate(asks)]
    for one, (_, where) in zip(pods, asks, strict=True):
        accounts.place(one, where)
        if data.draw(st.booleans()):
            accounts.place(one, "b")
    for one in data.draw(st.permutations(pods)):
        assert accounts.remove(one.uid)
        assert not accounts.remove(one.uid)
    assert set(accounts.used("a").values()) | set(accounts.used("b").values()) <= {0}


@UNHURRIED
@given(
    rooms=st.lists(st.integers(0, 3), min_size=1, max_size=6), is_cordoned=st.lists(st.booleans())
)
def test_words_count_every_node_once_in_either_part(
    rooms: list[int], is_cordoned: list[bool]
) -> None:
    """Each node has one filter that speaks for it, and is or isn't helped by preemption."""
    flags = (is_cordoned + [False] * len(rooms))[: len(rooms)]
    nodes = [
        node(f"n{at}", spec={"unschedulable": flag}, **{SLICES: str(room)})
        for at, (room, flag) in enumerate(zip(rooms, flags, strict=True))
    ]
    decision = decide(pod(**{SLICES: "4"}), nodes, Accounts(), lambda names: names[0])
    assert isinstance(decision, Unschedulable)
    total = len(nodes)
    reasons, _, preemption = decision.message.partition(" no new claims to deallocate, ")
    for part, prefix in ((reasons, ""), (preemption, "preemption: ")):
        head = f"{prefix}0/{total} nodes are available: "
        assert part.startswith(head)
        assert part.endswith(".")
        counts = [int(each.split()[0]) for each in part.removeprefix(head).split(", ")]
        assert sum(counts) == total


class Waiting(RuleBasedStateMachine):
    """One node, a queue and whatever may happen to its pods."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.queue = Queue(clock=lambda: self.now, jitter=lambda: 0.5)
        self.room = 4
        self.node = node("n", **{SLICES: "4"})
        self.accounts = Accounts()
        self.live: dict[str, Pod] = {}
        self.binding: list[Pod] = []
        self.bound: list[Pod] = []
        self.number = 0

    @rule(asked=st.integers(1, 5), priority=st.integers(0, 2))
    def arrive(self, asked: int, priority: int) -> None:
        self.number += 1
        one = pod(f"p{self.number}", spec={"priority": priority}, **{SLICES: str(asked)})
        self.live[one.uid] = one
        self.queue.put(one)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def told_again(self, data: st.DataObject) -> None:
        """The watch tells of a pod that waits: its status was written."""
        self.queue.put(self.live[data.draw(st.sampled_from(sorted(self.live)))])

    @rule()
    def cycle(self) -> None:
        one = self.queue.take()
        if one is None:
            return
        decision = decide(one, [self.node], self.accounts, lambda names: names[0])
        if isinstance(decision, Chosen):
            self.accounts.place(one, "n")
            self.queue.chosen(one)
            self.binding.append(one)
        else:
            self.queue.refused(one, decision.refused_by)

    @precondition(lambda self: self.binding)
    @rule(works=st.booleans())
    def bind_ends(self, *, works: bool) -> None:
        one = self.binding.pop(0)
        if works:
            self.queue.remove(one.uid)
            self.live.pop(one.uid, None)
            self.bound.append(one)
        elif self.queue.failed(one) is not None:
            self.accounts.remove(one.uid)
            self.queue.happened(hints.room_freed)

    @precondition(lambda self: self.bound)
    @rule()
    def pod_ends(self) -> None:
        self.accounts.remove(self.bound.pop(0).uid)
        self.queue.happened(hints.room_freed)

    @rule(room=st.integers(0, 6))
    def node_changes(self, room: int) -> None:
        after = node("n", **{SLICES: str(room)})
        self.queue.happened(hints.node_changed(self.node, after))
        self.node, self.room = after, room

    @rule(seconds=st.floats(0, 4))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def no_pod_is_lost(self) -> None:
        assert len(self.queue) == len(self.live)
        assert all(uid in self.queue for uid in self.live)

    def teardown(self) -> None:
        """In the end, whoever fits is placed without another event: no lost wake-up."""
        self.now += 20
        while self.binding:
            self.bind_ends(works=True)
        for _ in range(len(self.live) + 1):
            self.cycle()
            while self.binding:
                self.bind_ends(works=True)
        for one in self.live.values():
            refused = refusal(one, self.node, self.accounts.used("n"))
            assert refused is not None
            assert refused.by is Filter.RESOURCES


Waiting.TestCase.settings = settings(UNHURRIED, max_examples=200, stateful_step_count=40)
TestWaiting = Waiting.TestCase
