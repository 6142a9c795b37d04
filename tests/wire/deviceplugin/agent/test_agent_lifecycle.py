# SPDX-License-Identifier: Apache-2.0
"""Starts, ends and deaths: of the plugin, of kubelet, and of the API server."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from deviceplugin.inventory import GpuProcess
from gpuslice.contract.names import SLICE_RESOURCE, GpuUuid
from gpuslice.runtime.kube.resources import EVENTS, NODES, PODS
from gpuslice.sim.apiserver.server import ApiServer
from tests.wire.deviceplugin.agent.world import NODE, World, eventually, l4


def counts(world: World) -> tuple[int, int]:
    return world.kubelet.bare.counts()[0].get(SLICE_RESOURCE, (0, 0))


def test_the_ledger_says_whether_kubelet_listens(world: World) -> None:
    daemon = world.serving()
    world.kubelet.stop()
    eventually(lambda: not world.is_serving(), "kubelet is away")
    assert set(world.fits().values()) == {0}
    world.kubelet.start()
    eventually(world.is_serving, "kubelet is back")
    eventually(lambda: world.fits()["0.5"] == 4, "room again")
    assert daemon.ready() == (True, "ok")


def test_a_plugin_that_ends_says_so_first_and_publishes_no_room(world: World) -> None:
    daemon = world.serving()
    daemon.stop()
    world.daemons.clear()
    ledger = world.ledger()
    assert ledger is not None
    assert not ledger.serving
    assert set(world.fits().values()) == {0}


def test_a_plugin_that_ends_waits_for_the_pods_that_count_on_it(world: World) -> None:
    """Kubelet would fail a pod that it admits while the plugin is away."""
    daemon = world.serving()
    world.share("0.6", 60)
    pod = world.create("a", "0.6", 60)
    version = world.claim(pod, "0.6", 60, 0)
    eventually(lambda: world.shown_version() >= version, "shown")
    world.daemons.clear()
    ending = threading.Thread(target=daemon.stop)
    ending.start()
    eventually(lambda: not world.ledger().serving, "it says that it goes")  # type: ignore[union-attr]  # it exists
    assert counts(world) == (200, 200)
    world.client.bind(pod, NODE)
    eventually(lambda: world.phase("a") == "Running", "the pod is served all the same")
    ending.join(10)
    assert not ending.is_alive()
    assert world.states() == {"a": "Held"}


def test_a_restarted_plugin_finds_the_same_ledger(world: World) -> None:
    daemon = world.serving()
    world.share("0.6", 60)
    for index in range(2):
        world.place(f"p{index}", "0.6", 60, index)
    eventually(lambda: world.states() == {"p0": "Held", "p1": "Held"}, "held")
    before = world.ledger()
    daemon.stop(drain_seconds=0)
    world.daemons.clear()
    world.plugin()
    eventually(world.is_serving, "serving again")
    assert world.ledger() == before
    assert world.places() == world.held()


def test_what_happened_while_the_plugin_was_away_is_made_up_for(world: World) -> None:
    daemon = world.serving()
    world.share("0.3", 30)
    for index in range(3):
        world.place(f"p{index}", "0.3", 30, 0)
    eventually(lambda: set(world.states().values()) == {"Held"}, "held")
    daemon.stop(drain_seconds=0)
    world.daemons.clear()
    world.client.delete(PODS, "p0", namespace="default")
    world.client.delete(PODS, "p1", namespace="default", grace_seconds=0)
    eventually(lambda: len(world.client.list(PODS)) == 1, "two pods are gone")
    world.plugin()
    eventually(lambda: world.states() == {"p2": "Held"}, "two claims are gone")
    eventually(lambda: world.fits()["0.3"] == 6, "room again")


def test_kubelet_is_served_before_the_api_server_is_there(root: Path) -> None:
    api = ApiServer(port=0, tls=False).start()
    world = World(root, l4(0), l4(1), api=api)
    try:
        world.kubelet.start()
        api.stop()
        begun = time.monotonic()
        daemon = world.plugin()
        eventually(lambda: counts(world) == (200, 200), "registered")
        assert time.monotonic() - begun < 2
        eventually(lambda: daemon.ready()[0], "ready")
        eventually(lambda: "api-server" in daemon.problems, "it says what it waits for")
        world.api = ApiServer(port=int(api.url.rpartition(":")[2]), tls=False).start()
        world.define()
        world.client.create(NODES, {"metadata": {"name": NODE}})
        eventually(world.is_serving, "the ledger is there with the API server", 30)
    finally:
        world.end()


def test_kubelet_s_restart_leaves_running_pods_and_their_claims_alone(world: World) -> None:
    world.serving()
    world.share("0.6", 60)
    world.place("a", "0.6", 60, 1)
    eventually(lambda: world.phase("a") == "Running", "running")
    eventually(lambda: world.states() == {"a": "Held"}, "held")
    world.kubelet.restart()
    eventually(lambda: counts(world) == (200, 200), "registered again")
    eventually(world.is_serving, "serving")
    assert world.phase("a") == "Running"
    assert world.states() == {"a": "Held"}
    assert world.places() == world.held()


def test_a_gpu_that_is_lost_takes_no_newcomers_and_keeps_its_pods(world: World) -> None:
    daemon = world.serving()
    world.share("0.6", 60)
    world.place("a", "0.6", 60, 1)
    eventually(lambda: world.states() == {"a": "Held"}, "held")
    driver = daemon.monitor._driver
    driver.gpus = world.gpus[:1]  # type: ignore[attr-defined]  # the test's own driver
    eventually(lambda: counts(world) == (200, 100), "its tokens are unhealthy, and there")
    eventually(lambda: world.fits()["0.6"] == 2, "one claim and one more")
    assert world.states() == {"a": "Held"}
    driver.gpus = world.gpus  # type: ignore[attr-defined]  # the test's own driver
    eventually(lambda: counts(world) == (200, 200), "well again")


def said(world: World) -> set[tuple[str, str]]:
    """Return the Events' reasons, and what they are about."""
    return {(each["reason"], each["involvedObject"]["name"]) for each in world.client.list(EVENTS)}


def test_a_sick_gpu_is_told_of_on_the_node_and_on_each_of_its_pods(world: World) -> None:
    daemon = world.serving()
    world.share("0.3", 30)
    world.place("a", "0.3", 30, 1)
    world.place("b", "0.3", 30, 0)
    eventually(lambda: world.states() == {"a": "Held", "b": "Held"}, "held")
    driver = daemon.monitor._driver
    driver.gpus = world.gpus[:1]  # type: ignore[attr-defined]  # the test's own driver
    eventually(lambda: {("GpuUnhealthy", NODE), ("GpuUnhealthy", "a")} <= said(world), "it is told")
    on = {"node": NODE, "gpu_uuid": "GPU-1"}
    value = daemon.metrics.registry.get_sample_value
    assert value("gpuslice_gpu_unhealthy_claimed_slices", on) == 30
    driver.gpus = world.gpus  # type: ignore[attr-defined]  # the test's own driver
    eventually(lambda: ("GpuRecovered", NODE) in said(world), "and that it is well again")
    assert ("GpuUnhealthy", "b") not in said(world)


def test_use_over_the_claim_is_counted_and_told_once(world: World) -> None:
    world.kubelet.start()
    proc = world.root / "proc"
    daemon = world.plugin(
        **{
            "devicePlugin.watchUse": True,
            "devicePlugin.usePollSeconds": 0.02,
            "devicePlugin.procRoot": str(proc),
        }
    )
    eventually(world.is_serving, "serving")
    world.share("0.3", 30)
    world.place("a", "0.3", 30, 1)
    eventually(lambda: world.states() == {"a": "Held"}, "held")
    eventually(lambda: world.phase("a") == "Running", "kubelet writes its status no more")
    container = "ab" * 32
    status = [{"name": "main", "containerID": f"containerd://{container}"}]
    world.client.patch(
        PODS, "a", {"status": {"containerStatuses": status}}, namespace="default", status=True
    )
    (proc / "4711").mkdir(parents=True)
    (proc / "4711" / "cgroup").write_text(f"0::/kubepods.slice/cri-containerd-{container}.scope\n")
    on = {"namespace": "default", "pod": "a", "container": "main", "node": NODE}
    on["gpu_uuid"] = "GPU-1"
    value = daemon.metrics.registry.get_sample_value
    driver = daemon.monitor._driver
    used = GpuProcess(gpu=GpuUuid("GPU-1"), pid=4711, used_mib=7000)
    driver.used_by = (used,)  # type: ignore[attr-defined]  # the test's own driver
    eventually(lambda: value("gpuslice_container_memory_used_bytes", on) == 7000 * 2**20, "counted")
    assert value("gpuslice_container_memory_claimed_bytes", on) == 6910 * 2**20
    assert value("gpuslice_containers_over_claim", {"node": NODE}) == 1
    eventually(lambda: ("MemoryOverClaim", "a") in said(world), "told")
    driver.used_by = ()  # type: ignore[attr-defined]  # the test's own driver
    eventually(lambda: value("gpuslice_containers_over_claim", {"node": NODE}) == 0, "over")


def test_metrics_tell_of_claims_and_repairs(world: World) -> None:
    daemon = world.serving()
    world.client.bind(world.create("a", "0.6", 60), NODE)
    eventually(lambda: world.states() == {"a": "Held"}, "held")
    eventually(lambda: not daemon.allocator.view.in_flight, "read back")
    registry = daemon.metrics.registry
    on = {"node": NODE, "gpu_uuid": min(world.held()["a"])}
    assert registry.get_sample_value("gpuslice_slices_allocated", on) == 60
    assert registry.get_sample_value("gpuslice_slices_capacity", on) == 100
    assert registry.get_sample_value("gpuslice_allocations_total", {"result": "granted"}) == 1
    repairs = {"repair": "ClaimAdopted"}
    value = registry.get_sample_value
    eventually(lambda: value("gpuslice_ledger_repairs_total", repairs) == 1, "told once written")
    assert registry.get_sample_value("gpuslice_kubelet_stream_open", {"node": NODE}) == 1
