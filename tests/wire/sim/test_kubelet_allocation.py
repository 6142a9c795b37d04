# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from typing import Any

import pytest

from gpuslice.sim.kubelet.bare import BareKubelet
from gpuslice.sim.kubelet.devices import PanicError
from tests.wire.sim.toyplugin import Listed, Plug, build_container, build_pod, eventually


def ids_of(
    bare: BareKubelet, name: str, container: str = "main", resource: str = "example.com/thing"
) -> frozenset[str]:
    return bare.allocations()[f"uid-{name}"][container][resource]


def test_a_pod_gets_devices_and_the_plugins_environment(bare: BareKubelet, plugged: Plug) -> None:
    plugin = plugged(["a", "b"])
    assert bare.admit(build_pod("one")) is None
    (ids,) = plugin.asked("allocate")
    assert ids_of(bare, "one") == ids
    assert bare.container_env("uid-one", "main") == {"THINGS": min(ids), "FROM": "plugin"}


def test_the_pods_own_environment_wins_over_the_plugins(bare: BareKubelet, plugged: Plug) -> None:
    plugged(["a"])
    pod = build_pod("one")
    pod["spec"]["containers"][0]["env"] = [{"name": "FROM", "value": "pod"}]
    assert bare.admit(pod) is None
    assert bare.container_env("uid-one", "main") == {"THINGS": "a", "FROM": "pod"}


def test_every_container_is_allocated_for_by_a_call_of_its_own(
    bare: BareKubelet, plugged: Plug
) -> None:
    plugin = plugged(["a", "b", "c"])
    pod = build_pod("one", 1)
    pod["spec"]["containers"].append(build_container("other", 2))
    pod["spec"]["containers"].append(build_container("none", 0))
    assert bare.admit(pod) is None
    assert sorted(map(len, plugin.asked("allocate"))) == [1, 2]


def test_the_plugin_is_asked_with_all_free_devices(bare: BareKubelet, plugged: Plug) -> None:
    plugin = plugged("abcdef", prefers=lambda available, must, size: sorted(available)[:size])
    assert bare.admit(build_pod("one", 2)) is None
    assert bare.admit(build_pod("two", 3)) is None
    assert plugin.asked("preferred") == [
        (set("abcdef"), set(), 2),
        (set("cdef"), set(), 3),
    ]
    assert ids_of(bare, "two") == set("cde")


def test_the_plugin_is_asked_even_where_no_choice_is_left(bare: BareKubelet, plugged: Plug) -> None:
    plugin = plugged("ab", prefers=lambda available, must, size: available)
    assert bare.admit(build_pod("one", 2)) is None
    assert plugin.asked("preferred") == [({"a", "b"}, set(), 2)]


def test_a_shortfall_of_the_answer_is_filled_from_what_is_free(
    bare: BareKubelet, plugged: Plug
) -> None:
    plugged("abcdef", prefers=lambda available, must, size: {"c", "nonsense"})
    assert bare.admit(build_pod("one", 3)) is None
    chosen = ids_of(bare, "one")
    assert len(chosen) == 3
    assert "c" in chosen
    assert chosen <= set("abcdef")


def test_of_too_long_an_answer_a_part_is_taken(bare: BareKubelet, plugged: Plug) -> None:
    plugged("abcdef", prefers=lambda available, must, size: {"a", "b", "c"})
    assert bare.admit(build_pod("one", 2)) is None
    assert len(ids_of(bare, "one")) == 2
    assert ids_of(bare, "one") < {"a", "b", "c"}


@pytest.mark.parametrize(
    ("devices", "answers", "message"),
    [
        pytest.param(
            "a",
            {},
            "requested number of devices unavailable for example.com/thing. "
            "Requested: 2, Available: 1",
            id="too few",
        ),
        pytest.param(
            [("a", "Unhealthy")],
            {},
            "no healthy devices present; cannot allocate unhealthy devices example.com/thing",
            id="none healthy",
        ),
        pytest.param(
            "abc",
            {"prefers": lambda available, must, size: "lost my mind"},
            "device plugin GetPreferredAllocation rpc failed with err: rpc error: "
            "code = Internal desc = lost my mind",
            id="preference fails",
        ),
        pytest.param(
            "abc",
            {"on_allocate": lambda ids: "no room on one GPU"},
            "rpc error: code = ResourceExhausted desc = no room on one GPU",
            id="Allocate fails",
        ),
        pytest.param(
            "abc",
            {"on_allocate": lambda ids: ""},
            "no containers return in allocation response ",
            id="empty answer",
        ),
    ],
)
def test_a_pod_that_gets_no_devices_is_refused_for_ever(
    bare: BareKubelet, plugged: Plug, devices: Listed, answers: dict[str, Any], message: str
) -> None:
    plugged(devices, **answers)
    rejection = bare.admit(build_pod("one", 2))
    assert rejection.reason == "UnexpectedAdmissionError"
    assert rejection.message == f"Allocate failed due to {message}, which is unexpected"
    assert bare.allocations() == {}


def test_a_failed_allocate_gives_its_devices_back_and_an_empty_answer_does_not(
    bare: BareKubelet, plugged: Plug
) -> None:
    answers = iter(["refused", "", None])
    plugged("ab", on_allocate=lambda ids: next(answers))
    assert bare.admit(build_pod("refused", 1)).message.endswith("refused, which is unexpected")
    assert "no containers return" in bare.admit(build_pod("empty", 1)).message
    assert bare.admit(build_pod("served", 1)) is None
    assert "Requested: 1, Available: 0" in bare.admit(build_pod("late", 1)).message


def test_a_resource_without_plugin_is_no_business_of_kubelet(bare: BareKubelet) -> None:
    assert bare.admit(build_pod("one")) is None
    assert bare.allocations() == {}


def test_devices_are_held_for_the_pods_life(bare: BareKubelet, plugged: Plug) -> None:
    plugged("ab")
    assert bare.admit(build_pod("one", 2)) is None
    bare.end_container("uid-one", "main")
    assert "Available: 0" in bare.admit(build_pod("two", 1)).message
    bare.release("uid-one")
    assert bare.admit(build_pod("three", 2)) is None


def test_released_devices_are_free_only_when_somebody_asks(
    bare: BareKubelet, plugged: Plug
) -> None:
    plugged("ab")
    assert bare.admit(build_pod("one", 2)) is None
    bare.release("uid-one")
    assert bare._allocator.in_use() == {"example.com/thing": 2}
    assert bare.admit(build_pod("two", 1)) is None
    assert bare._allocator.in_use() == {"example.com/thing": 1}


def test_init_containers_leave_their_devices_to_the_next_ones(
    bare: BareKubelet, plugged: Plug
) -> None:
    """A plain init container and the sidecar after it share one device; the app has the other."""
    plugin = plugged("ab", prefers=lambda available, must, size: sorted(available)[:size])
    init = [build_container("init", 1), build_container("side", 1, restartPolicy="Always")]
    assert bare.admit(build_pod("one", 1, init=init)) is None
    assert ids_of(bare, "one", "init") == ids_of(bare, "one", "side")
    assert ids_of(bare, "one", "main").isdisjoint(ids_of(bare, "one", "side"))
    assert len(plugin.asked("allocate")) == 3
    assert len(plugin.asked("preferred")) == 2, "the sidecar's was there already"


def test_reused_devices_must_be_included_in_a_larger_set(bare: BareKubelet, plugged: Plug) -> None:
    plugin = plugged("abcd", prefers=lambda available, must, size: available)
    assert bare.admit(build_pod("one", 3, init=[build_container("init", 1)])) is None
    reused = set(ids_of(bare, "one", "init"))
    assert plugin.asked("preferred")[1] == (set("abcd"), reused, 3)
    assert reused < ids_of(bare, "one", "main")


def test_what_an_earlier_container_got_is_freed_when_a_later_one_fails(
    bare: BareKubelet, plugged: Plug
) -> None:
    answers = iter([None, "second", None])
    plugged("ab", on_allocate=lambda ids: next(answers))
    pod = build_pod("one", 1)
    pod["spec"]["containers"].append(build_container("other", 1))
    assert bare.admit(pod) is not None
    assert bare.admit(build_pod("two", 2)) is None


def test_a_list_during_an_allocation_forgets_what_it_has_reserved(
    bare: BareKubelet, plugged: Plug
) -> None:
    """kubernetes/kubernetes#137534, up to 1.37: one device goes to two pods."""
    asked, go = threading.Event(), threading.Event()

    def wait(_: set[str]) -> None:
        asked.set()
        assert go.wait(10)

    plugin = plugged("abc", on_allocate=lambda ids: None)
    assert bare.admit(build_pod("gone", 1)) is None
    plugin.on_allocate = wait
    slow = threading.Thread(target=bare.admit, args=[build_pod("slow", 2)])
    slow.start()
    assert asked.wait(10)
    bare.release("uid-gone")
    bare._allocator.update()  # what List does first
    go.set()
    slow.join(10)
    plugin.on_allocate = None
    assert bare.admit(build_pod("next", 3)) is None
    assert ids_of(bare, "slow") < ids_of(bare, "next")


def test_a_device_that_vanishes_while_it_is_given_out_crashes_kubelet(
    bare: BareKubelet, plugged: Plug
) -> None:
    def vanish(_: set[str]) -> None:
        plugin.publish(["c"])
        eventually(lambda: bare.counts()[0]["example.com/thing"] == (1, 1))

    plugin = plugged("ab", on_allocate=vanish)
    with pytest.raises(PanicError):
        bare.admit(build_pod("one", 1))


def test_an_unhealthy_device_in_use_stays_its_pods(bare: BareKubelet, plugged: Plug) -> None:
    plugin = plugged("a")
    assert bare.admit(build_pod("one")) is None
    plugin.publish([("a", "Unhealthy")])
    eventually(lambda: bare.counts()[0]["example.com/thing"] == (1, 0))
    assert ids_of(bare, "one") == {"a"}
    bare.release("uid-one")
    assert bare.counts()[0]["example.com/thing"] == (1, 0)


def test_a_plugin_may_be_called_before_each_start_of_a_container(
    bare: BareKubelet, plugged: Plug
) -> None:
    plugin = plugged("ab", pre_start_required=True)
    pod = build_pod("one", 2)
    assert bare.admit(pod) is None
    bare.prepare_start(pod, pod["spec"]["containers"][0])
    assert plugin.asked("pre_start") == [{"a", "b"}]
