# SPDX-License-Identifier: Apache-2.0
"""Laws of kubelet's bookkeeping, whatever comes in whatever order."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.sim.kubelet import checkpoint
from gpuslice.sim.kubelet.devices import AllocationError, Device, Devices

THING = "example.com/thing"
IDS = tuple(f"gpu-{number // 4}::{number % 4}" for number in range(12))

subsets = st.frozensets(st.sampled_from(IDS))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 6), subsets),
        st.tuples(st.just("release"), st.integers(0, 20), st.just(frozenset[str]())),
        st.tuples(st.just("health"), st.just(0), subsets),
    ),
    max_size=30,
)


def listed(unhealthy: frozenset[str]) -> list[Device]:
    return [Device(id=each, healthy=each not in unhealthy) for each in IDS]


def play(script: list[tuple[str, int, frozenset[str]]], seed: int) -> tuple[Devices, list[str]]:
    """Admit pods, release the n-th oldest, and change health; check every answer."""
    devices = Devices(Random(seed))
    devices.replace(THING, listed(frozenset()))
    live: list[str] = []
    for number, (what, count, ids) in enumerate(script):
        if what == "health":
            devices.replace(THING, listed(ids))
        elif what == "release":
            if live:
                live.pop(count % len(live))
            devices.release_all_but(live)
        else:
            pod = f"pod-{number}"
            free = devices.healthy[THING] - devices.in_use.get(THING, set())
            try:
                choice = devices.begin(
                    pod_uid=pod, container="main", resource=THING, required=count
                )
            except AllocationError:
                assert count > len(free) or not devices.healthy[THING]
                continue
            if choice is None:
                assert count == 0
                continue
            assert choice.available == free
            taken = devices.finish(choice, ids)
            assert len(taken) == count
            assert taken <= free
            assert len(taken & ids) == min(count, len(ids & free))
            devices.hold(choice, b"")
            live.append(pod)
    return devices, live


@given(steps, st.integers())
def test_no_device_is_held_twice_and_none_is_lost(
    script: list[tuple[str, int, frozenset[str]]], seed: int
) -> None:
    devices, live = play(script, seed)
    held = [device for holding in devices.holdings for device in holding.ids]
    assert len(held) == len(set(held))
    assert {holding.pod_uid for holding in devices.holdings} == set(live)
    assert devices.in_use.get(THING, set()) == set(held)
    assert devices.healthy[THING] | devices.unhealthy[THING] == set(IDS)
    assert devices.healthy[THING].isdisjoint(devices.unhealthy[THING])


@given(steps, st.integers())
def test_a_checkpoint_brings_back_all_holdings(
    script: list[tuple[str, int, frozenset[str]]], seed: int
) -> None:
    devices, _ = play(script, seed)
    written = checkpoint.Checkpoint(holdings=devices.holdings, registered=devices.allocatable())
    found = checkpoint.decode(checkpoint.encode(written))
    again = Devices(Random(0))
    again.restore(found.holdings, found.registered)
    assert list(again.holdings) == list(devices.holdings)
    assert again.counts() == {THING: (0, 0)}
    again.replace(THING, listed(frozenset()))
    assert again.in_use == {name: ids for name, ids in devices.in_use.items() if ids}


@given(steps, st.integers())
def test_the_same_seed_makes_the_same_choices(
    script: list[tuple[str, int, frozenset[str]]], seed: int
) -> None:
    one, two = (list(play(script, seed)[0].holdings) for _ in range(2))
    assert one == two
