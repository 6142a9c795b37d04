# SPDX-License-Identifier: Apache-2.0
"""The whole kubelet, against the embedded cluster's API server and a plugin over real gRPC."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import NotFoundError
from gpuslice.runtime.kube.resources import EVENTS, NODES, PODS
from gpuslice.sim.apiserver.server import ApiServer
from gpuslice.sim.kubelet.kubelet import Kubelet
from gpuslice.sim.kubelet.quirks import Quirks
from gpuslice.sim.kubelet.remote import RemoteApi
from gpuslice.sim.kubelet.timings import Timings
from protos.podresources.v1 import api_pb2, api_pb2_grpc
from tests.wire.sim.toyplugin import RESOURCE, Plug, build_pod, dial, eventually

FIT = "gpuslice.dev/fit-0.5"
QUICK = Timings(
    status_interval_seconds=0.05,
    push_on_change=True,
    start_seconds=0.01,
    stop_seconds=0.01,
    kill_seconds=0.5,
    speed=100,
)


class World:
    """An API server, one kubelet, and a user."""

    def __init__(self, client: KubeClient, kubelet: Kubelet) -> None:
        self.client = client
        self.kubelet = kubelet

    def run(self, name: str, count: int = 1, *, words: str = "infinity", **more: Any) -> None:
        """Create a pod that sleeps, and bind it."""
        pod = build_pod(name, count, **{"restartPolicy": "Never"} | more)
        del pod["metadata"]["uid"]
        for each in (*pod["spec"]["initContainers"], *pod["spec"]["containers"]):
            each.setdefault("image", "ubuntu")
        pod["spec"]["containers"][0]["args"] = ["sleep", words]
        self.client.bind(self.client.create(PODS, pod), "node-a")

    def pod(self, name: str) -> dict[str, Any]:
        return self.client.get(PODS, name, namespace="default")

    def uid(self, name: str) -> str:
        return str(self.pod(name)["metadata"]["uid"])

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"].get("phase"))

    def exists(self, name: str) -> bool:
        try:
            self.pod(name)
        except NotFoundError:
            return False
        return True

    def becomes(self, name: str, phase: str) -> None:
        eventually(lambda: self.phase(name) == phase)

    def node(self) -> dict[str, Any]:
        return self.client.get(NODES, "node-a")

    def amounts(self, resource: str = RESOURCE) -> tuple[str | None, str | None]:
        status = self.node()["status"]
        return status["capacity"].get(resource), status["allocatable"].get(resource)

    def publish(self, resource: str, count: int) -> None:
        amounts = {resource: str(count)}
        patch = {"status": {"capacity": amounts, "allocatable": amounts}}
        self.client.patch(NODES, "node-a", patch, status=True)

    def sees(self, resource: str, count: int) -> None:
        """Wait until kubelet's own copy of the Node has an amount."""
        eventually(
            lambda: self.kubelet._node_copy()["status"]["allocatable"].get(resource) == str(count)
        )

    def processes(self) -> list[str]:
        return sorted(name for _, _, name, _ in self.kubelet.processes())

    def knows(self, name: str) -> bool:
        """Whether PodResources Get knows a pod."""
        with dial(self.kubelet.bare.pod_resources_socket) as channel:
            request = api_pb2.GetPodResourcesRequest(pod_name=name, pod_namespace="default")
            try:
                api_pb2_grpc.PodResourcesListerStub(channel).Get(request, timeout=5)
            except grpc.RpcError as err:
                if "not found" in str(err.details()):
                    return False
                raise
            return True


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeClient]:
    with ApiServer() as server:
        client = KubeClient(config.load(server.kubeconfig(tmp_path / "kubeconfig")))
        yield client
        client.close()


@pytest.fixture
def new_world(root: Path, client: KubeClient) -> Iterator[Callable[..., World]]:
    """Return a function that starts the kubelet of node-a, with timings of choice."""
    kubelets: list[Kubelet] = []

    def make(timings: Timings = QUICK, quirks: Quirks | None = None) -> World:
        kubelet = Kubelet(
            node_name="node-a",
            root=root,
            api=RemoteApi(client),
            rng=Random(3),
            quirks=quirks or Quirks(pod_resources_burst=10_000),
            timings=timings,
        )
        kubelet.start()
        kubelets.append(kubelet)
        world = World(client, kubelet)
        eventually(lambda: client.list(NODES))
        return world

    yield make
    for kubelet in kubelets:
        kubelet.stop()
        assert kubelet.panic is None


@pytest.fixture
def world(new_world: Callable[..., World], new_plugin: Plug) -> World:
    """Return a node whose plugin offers four things."""
    world = new_world()
    new_plugin("abcd").register()
    eventually(lambda: world.amounts() == ("4", "4"))
    world.sees(RESOURCE, 4)
    return world


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


def test_after_a_restart_running_pods_run_on(world: World, new_plugin: Plug) -> None:
    world.run("one", 2)
    world.becomes("one", "Running")
    uid, before = world.uid("one"), world.kubelet.allocations()
    world.kubelet.restart()
    eventually(lambda: world.kubelet.allocations() == before)
    eventually(lambda: world.amounts() == ("0", "0"))
    new_plugin("abcd").register()
    eventually(lambda: world.amounts() == ("4", "4"))
    assert (world.uid("one"), world.phase("one")) == (uid, "Running")
    assert world.processes() == ["one"]


def test_after_a_restart_a_succeeded_pod_stays_succeeded(world: World) -> None:
    world.run("one", 2, words="1")
    world.becomes("one", "Succeeded")
    world.kubelet.restart()
    world.run("plain", 0)
    world.becomes("plain", "Running")
    assert world.phase("one") == "Succeeded"


def test_a_pod_deleted_while_kubelet_was_away_is_gone_afterwards(world: World) -> None:
    world.run("one", 2)
    world.becomes("one", "Running")
    world.kubelet.stop()
    world.client.delete(PODS, "one", namespace="default", grace_seconds=0)
    world.kubelet.start()
    eventually(lambda: world.processes() == [])
    assert not world.knows("one")


def test_a_reboot_fails_pods_with_devices_and_starts_the_others_again(
    world: World,
) -> None:
    world.run("one", 2)
    world.run("plain", 0)
    world.becomes("one", "Running")
    world.becomes("plain", "Running")
    world.kubelet.reboot()
    world.becomes("one", "Failed")
    assert world.pod("one")["status"]["reason"] == "UnexpectedAdmissionError"
    eventually(lambda: world.processes() == ["plain"])
    assert not world.knows("one")
    eventually(lambda: world.amounts() == ("0", "0"))


def test_a_kubelet_that_lost_its_checkpoint_zeroes_all_extended_resources(
    new_world: Callable[..., World], root: Path
) -> None:
    """It does so only where its runtime comes up after it: see `Quirks.runtime_starts_late`."""
    world = new_world(Timings(status_interval_seconds=0.05), Quirks(runtime_starts_late=True))
    world.publish(FIT, 5)
    world.kubelet.restart()
    eventually(lambda: world.amounts(FIT) == ("0", "0"))
    (root / "device-plugins" / "kubelet_internal_checkpoint").write_text("{}")
    world.publish(FIT, 5)
    world.kubelet.restart()
    wrong = {"status": {"capacity": {"cpu": "1"}}}
    world.client.patch(NODES, "node-a", wrong, status=True)
    eventually(lambda: world.amounts("cpu") == ("16", "16"))  # so it has registered
    assert world.amounts(FIT) == ("5", "5")


def test_stopping_takes_less_than_a_second(world: World) -> None:
    world.run("one", 2)
    began = time.monotonic()
    world.kubelet.stop()
    assert time.monotonic() - began < 1
    assert not any(thread.is_alive() for thread in world.kubelet._threads)
