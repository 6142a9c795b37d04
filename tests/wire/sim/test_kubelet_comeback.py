# SPDX-License-Identifier: Apache-2.0
"""The whole kubelet comes back: restarted, rebooted, without its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gpuslice.runtime.kube.resources import NODES, PODS
from gpuslice.sim.kubelet.quirks import Quirks
from gpuslice.sim.kubelet.timings import Timings
from tests.wire.sim.toyplugin import Plug, build_container, eventually
from tests.wire.sim.world import FIT, World


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


def test_a_restart_fails_a_running_pod_whose_init_container_holds_devices(
    world: World, new_plugin: Plug
) -> None:
    """Its init container doesn't run, so kubelet wants healthy devices for it again."""
    world.run("one", 2, init=[build_container("init", 1)])
    world.becomes("one", "Running")
    world.kubelet.restart()
    world.becomes("one", "Failed")
    assert world.pod("one")["status"]["reason"] == "UnexpectedAdmissionError"
    eventually(lambda: world.processes() == [])
    world.client.delete(PODS, "one", namespace="default")
    eventually(lambda: not world.exists("one"))


def test_a_restart_takes_older_pods_first(world: World) -> None:
    """Their Node has room for one of the two: that is the older one."""
    world.publish(FIT, 2)
    world.sees(FIT, 2)
    for name in ("older", "younger"):
        amounts = {FIT: "1"}
        resources = {"limits": amounts, "requests": amounts}
        world.run(name, 0, containers=[{"name": "main", "resources": resources}])
        world.becomes(name, "Running")
        made = world.pod(name)["metadata"]["creationTimestamp"]
        eventually(lambda made=made: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) > made)
    world.kubelet.stop()
    world.publish(FIT, 1)
    world.kubelet.start()
    world.becomes("younger", "Failed")
    assert world.phase("older") == "Running"


def test_a_kubelet_that_lost_its_checkpoint_leaves_its_node_as_it_is(
    new_world: Callable[..., World],
) -> None:
    """With a runtime that is up, its own socket is there before it looks for a checkpoint."""
    world = new_world(Timings(status_interval_seconds=0.05))
    world.publish(FIT, 5)
    world.kubelet.restart()
    wrong = {"status": {"capacity": {"cpu": "1"}}}
    world.client.patch(NODES, "node-a", wrong, status=True)
    eventually(lambda: world.amounts("cpu") == ("16", "16"))  # so it has registered
    assert world.amounts(FIT) == ("5", "5")
