# SPDX-License-Identifier: Apache-2.0
"""The whole kubelet, against the embedded cluster's API server and a plugin over real gRPC."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpuslice.runtime.kube.resources import EVENTS, NODES, PODS
from gpuslice.sim.kubelet.quirks import Quirks
from gpuslice.sim.kubelet.timings import Timings
from tests.wire.sim.toyplugin import RESOURCE, Plug, eventually
from tests.wire.sim.world import FIT, World


def test_a_pod_runs_and_sees_its_environment(world: World) -> None:
    world.run("one", 2)
    world.becomes("one", "Running")
    env = world.kubelet.container_env("default", "one", "main")
    ids = world.kubelet.allocations()[world.uid("one")]["main"][RESOURCE]
    assert env == {"THINGS": ",".join(sorted(ids)), "FROM": "plugin"}
    conditions = {each["type"]: each["status"] for each in world.pod("one")["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert conditions["PodScheduled"] == "True"
    assert world.processes() == ["one"]


def test_the_node_shows_devices_and_their_health(world: World, new_plugin: Plug) -> None:
    plugin = new_plugin("abcd", resource="example.com/other")
    plugin.register()
    eventually(lambda: world.amounts("example.com/other") == ("4", "4"))
    plugin.publish([("a", "Unhealthy"), *"bcd"])
    eventually(lambda: world.amounts("example.com/other") == ("4", "3"))
    plugin.stop()
    eventually(lambda: world.amounts("example.com/other") == ("4", "0"))


def test_a_pods_status_shows_the_health_of_its_devices(
    new_world: Callable[..., World], new_plugin: Plug
) -> None:
    """A plugin that goes away changes nothing in it."""
    world = new_world()
    plugin = new_plugin("ab")
    plugin.register()
    eventually(lambda: world.amounts() == ("2", "2"))
    world.run("one", 1)
    world.becomes("one", "Running")
    (device,) = world.kubelet.allocations()[world.uid("one")]["main"][RESOURCE]

    def shown() -> Any:
        return world.pod("one")["status"]["containerStatuses"][0]["allocatedResourcesStatus"]

    def health(word: str) -> Any:
        return [{"name": RESOURCE, "resources": [{"resourceID": device, "health": word}]}]

    assert shown() == health("Healthy")
    plugin.publish([(each, "Unhealthy" if each == device else "Healthy") for each in "ab"])
    eventually(lambda: shown() == health("Unhealthy"))
    assert world.phase("one") == "Running"
    plugin.publish("ab")
    eventually(lambda: shown() == health("Healthy"))
    plugin.stop()
    eventually(lambda: world.amounts() == ("2", "0"))
    assert shown() == health("Healthy")


def test_a_resource_whose_plugin_stays_away_is_zero_for_ever(
    new_world: Callable[..., World], new_plugin: Plug
) -> None:
    world = new_world(quirks=Quirks(endpoint_grace_seconds=0.2))
    plugin = new_plugin("ab")
    plugin.register()
    eventually(lambda: world.amounts() == ("2", "2"))
    plugin.stop()
    eventually(lambda: world.amounts() == ("0", "0"))


def test_a_container_that_ends_lets_its_pod_succeed_and_its_devices_go(world: World) -> None:
    world.run("one", 4, words="5")
    world.becomes("one", "Succeeded")
    world.run("two", 4)
    eventually(lambda: world.phase("two") in ("Running", "Failed"))
    assert world.processes() in ([], ["two"])


def test_the_last_phase_is_written_before_kubelet_lets_the_pod_go(
    new_world: Callable[..., World], new_plugin: Plug
) -> None:
    world = new_world(quirks=Quirks(release_delay_seconds=(0.5, 0.5), pod_resources_burst=10_000))
    new_plugin("ab").register()
    eventually(lambda: world.amounts() == ("2", "2"))
    world.run("one", 2, words="1")
    world.becomes("one", "Succeeded")
    assert world.knows("one")
    assert world.kubelet.allocations() != {}
    eventually(lambda: not world.knows("one"))
    assert world.kubelet.allocations() == {}


def test_a_pod_that_kubelet_can_not_serve_fails_for_good(world: World) -> None:
    world.run("big", 5)
    world.becomes("big", "Failed")
    status = world.pod("big")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert status["message"] == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        f"{RESOURCE}. Requested: 5, Available: 4, which is unexpected"
    )
    eventually(lambda: world.client.list(EVENTS, namespace="default"))
    (event,) = world.client.list(EVENTS, namespace="default")
    assert (event["type"], event["reason"]) == ("Warning", "UnexpectedAdmissionError")


def test_a_fit_is_checked_against_kubelets_own_copy_of_its_node(world: World) -> None:
    world.publish(FIT, 1)
    world.sees(FIT, 1)
    fit = {"resources": {"limits": {FIT: "1"}, "requests": {FIT: "1"}}}
    container = {"name": "main", "image": "ubuntu", "args": ["sleep", "infinity"], **fit}
    for name in ("one", "two"):
        world.run(name, containers=[dict(container)])
        eventually(lambda name=name: world.phase(name) != "Pending")
    assert world.phase("one") == "Running"
    status = world.pod("two")["status"]
    assert status["reason"] == f"OutOf{FIT}"
    assert status["message"] == (
        f"Pod was rejected: Node didn't have enough resource: {FIT}, "
        "requested: 1, used: 1, capacity: 1"
    )


def test_a_copy_that_lags_refuses_a_pod_that_the_node_has_room_for(
    new_world: Callable[..., World],
) -> None:
    world = new_world(Timings(node_lag_seconds=3600, start_seconds=0.01))
    world.publish(FIT, 0)
    eventually(lambda: len(world.kubelet._own_node) > 1)
    world.kubelet._own_node.popleft()
    eventually(lambda: FIT in world.kubelet._node_copy()["status"]["allocatable"])
    world.publish(FIT, 5)
    fit = {"limits": {FIT: "1"}, "requests": {FIT: "1"}}
    world.run("one", containers=[{"name": "main", "image": "x", "resources": fit}])
    world.becomes("one", "Failed")
    assert world.pod("one")["status"]["reason"] == f"OutOf{FIT}"


def test_required_node_affinity_is_checked_again_and_gets_a_second_look(
    new_world: Callable[..., World],
) -> None:
    world = new_world(Timings(node_lag_seconds=3600, start_seconds=0.01))
    eventually(lambda: world.kubelet._own_node)
    world.client.patch(NODES, "node-a", {"metadata": {"labels": {"room": "5"}}})
    world.run("seen", 0, nodeSelector={"room": "5"})
    world.becomes("seen", "Running")
    world.run("refused", 0, nodeSelector={"room": "6"})
    world.becomes("refused", "Failed")
    assert world.pod("refused")["status"]["reason"] == "NodeAffinity"


def test_unknown_resources_stay_and_allocatable_follows_capacity(world: World) -> None:
    world.client.patch(
        NODES,
        "node-a",
        {
            "status": {
                "capacity": {FIT: "7"},
                "allocatable": {FIT: "3", "gpuslice.dev/fit-1": "2"},
            }
        },
        status=True,
    )
    eventually(lambda: world.amounts(FIT) == ("7", "7"))
    assert world.amounts("gpuslice.dev/fit-1") == (None, None)


def test_a_deleted_pod_ends_and_leaves_the_api_last(world: World) -> None:
    world.run("one", 4)
    world.becomes("one", "Running")
    world.client.delete(PODS, "one", namespace="default")
    eventually(lambda: not world.exists("one"))
    assert not world.knows("one")
    assert world.kubelet.allocations() == {}
    eventually(lambda: world.processes() == [])


def test_a_pod_deleted_by_force_lives_on_listed_nowhere(world: World) -> None:
    world.run("one", 4)
    world.becomes("one", "Running")
    world.client.delete(PODS, "one", namespace="default", grace_seconds=0)
    eventually(lambda: not world.knows("one"))
    assert world.processes() == ["one"]
    assert world.kubelet.allocations() == {}
    world.run("two", 4)
    world.becomes("two", "Running")
    eventually(lambda: world.processes() == ["two"])


def test_a_container_that_restarts_keeps_its_device(world: World) -> None:
    world.run("one", 1, words="3", restartPolicy="Always")

    def restarted() -> bool:
        (container,) = world.pod("one")["status"].get("containerStatuses") or [{}]
        return bool(container.get("restartCount", 0) >= 2)

    world.becomes("one", "Running")
    before = world.kubelet.allocations()
    eventually(restarted)
    assert world.kubelet.allocations() == before


def test_pods_that_arrive_together_are_admitted_in_any_order(
    new_world: Callable[..., World], new_plugin: Plug
) -> None:
    world = new_world(Timings(batch_seconds=0.5, start_seconds=0.01, push_on_change=True))
    order: list[str] = []
    admit = world.kubelet.bare.admit

    def note(pod: dict[str, Any], **more: Any) -> Any:
        order.append(pod["metadata"]["name"])
        return admit(pod, **more)

    world.kubelet.bare.admit = note  # type: ignore[method-assign] # to see the order
    names = [f"pod-{number}" for number in range(8)]
    for name in names:
        world.run(name, 0)
    eventually(lambda: len(order) == 8)
    assert sorted(order) == names
    assert order != names


def test_stopping_takes_less_than_a_second(world: World) -> None:
    world.run("one", 2)
    began = time.monotonic()
    world.kubelet.stop()
    assert time.monotonic() - began < 1
    assert not any(thread.is_alive() for thread in world.kubelet._threads)
