# SPDX-License-Identifier: Apache-2.0
"""The ledger follows kubelet and the pods, and the Node follows the ledger."""

from __future__ import annotations

import statistics
import time

from gpuslice.contract import pods
from gpuslice.contract.names import SLICE_RESOURCE
from gpuslice.runtime.kube.resources import EVENTS, GPU_NODES, GPU_SHARES, NODES, PODS
from tests.wire.deviceplugin.agent.world import NODE, World, eventually


def test_the_inventory_and_the_fits_of_an_empty_node_are_published(world: World) -> None:
    world.serving()
    gpu_node = world.client.get(GPU_NODES, NODE)
    node = world.client.get(NODES, NODE)
    (owner,) = gpu_node["metadata"]["ownerReferences"]
    assert owner["uid"] == node["metadata"]["uid"]
    assert [gpu["memoryMiB"] for gpu in gpu_node["spec"]["gpus"]] == [23034, 23034]
    fits = {"0.1": 20, "0.125": 16, "0.2": 10, "0.25": 8, "0.5": 4, "0.75": 2, "1": 2}
    eventually(lambda: world.fits() == fits, "all fits of an empty node")
    eventually(
        lambda: world.client.get(NODES, NODE)["status"]["capacity"].get(SLICE_RESOURCE) == "200",
        "kubelet's own count",
    )
    assert pods.labels_of(world.client.get(NODES, NODE))["gpuslice.dev/empty-gpus"] == "2"


def test_a_pod_s_claim_is_reserved_then_held_then_gone(world: World) -> None:
    world.serving()
    world.share("0.6", 60)
    world.place("a", "0.6", 60, 1, words="100")
    eventually(lambda: world.states() == {"a": "Held"}, "held")
    assert world.held() == {"a": {"GPU-1": 60}}
    assert world.kubelet.container_env("default", "a", "main")["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    eventually(lambda: world.fits()["0.6"] == 2 and world.fits()["1"] == 1, "one whole GPU left")
    eventually(lambda: world.phase("a") == "Succeeded", "ended")
    eventually(lambda: world.states() == {}, "claim ended with kubelet's hold on the tokens")
    eventually(lambda: world.fits()["1"] == 2, "room again")


def test_no_claim_ends_before_kubelet_has_let_the_pod_go(world: World) -> None:
    """Succeeded is in the API up to 0.1 s before kubelet frees the tokens."""
    world.serving()
    world.share("0.6", 60)
    for number in range(5):
        name = f"p{number}"
        world.place(name, "0.6", 60, number % 2, words="1")
        eventually(lambda name=name: world.phase(name) == "Succeeded", "ended")
        while name in world.states():
            time.sleep(0.001)
        # Read in this order: what kubelet holds now, it held when the claim was seen to be gone.
        assert name not in world.held()


def test_each_ledger_version_reaches_the_node_soon(world: World) -> None:
    """The arbiter answers a bind only when the Node shows its claim."""
    world.serving()
    taken = []
    for number in range(10):
        pod = world.create(f"p{number}", "0.1", 10)
        begun = time.monotonic()
        version = world.claim(pod, "0.1", 10, number % 2)
        eventually(lambda version=version: world.shown_version() >= version, "shown")
        taken.append(time.monotonic() - begun)
    assert statistics.median(taken) < 0.1


def test_equal_pods_that_kubelet_served_in_another_order_exchange_their_claims(
    world: World,
) -> None:
    world.serving()
    world.share("0.6", 60)
    waiting = [world.create(f"p{number}", "0.6", 60) for number in range(2)]
    version = max(world.claim(pod, "0.6", 60, index) for index, pod in enumerate(waiting))
    eventually(lambda: world.shown_version() >= version, "shown")
    # kubelet sees the second one first.
    world.client.bind(waiting[1], NODE)
    eventually(lambda: "p1" in world.held(), "second served")
    world.client.bind(waiting[0], NODE)
    eventually(lambda: world.states() == {"p0": "Held", "p1": "Held"}, "both held")
    eventually(lambda: world.places() == world.held(), "claims are where the tokens are")
    eventually(
        lambda: (
            {
                name: pods.annotations_of(world.pod(name))["gpuslice.dev/gpu"]
                for name in ("p0", "p1")
            }
            == {name: min(tokens) for name, tokens in world.held().items()}
        ),
        "pods are annotated from their claims",
    )


def test_a_pod_bound_without_the_arbiter_gets_a_claim_and_its_annotations(world: World) -> None:
    world.serving()
    world.client.bind(world.create("a", "0.6", 60), NODE)
    eventually(lambda: world.states() == {"a": "Held"}, "claimed from its tokens")
    assert world.places() == world.held()
    eventually(
        lambda: pods.annotations_of(world.pod("a")).get("gpuslice.dev/memory-mib") == "13820",
        "annotated",
    )


def test_without_the_arbiter_what_no_gpu_holds_is_refused_and_nothing_overlaps(
    world: World,
) -> None:
    world.serving()
    for number in range(3):
        world.client.bind(world.create(f"p{number}", "0.6", 60), NODE)
    eventually(lambda: len(world.states()) == 2, "two have claims")
    eventually(
        lambda: (
            sorted(world.phase(f"p{number}") for number in range(3))
            == ["Failed", "Running", "Running"]
        ),
        "one is refused",
    )
    eventually(lambda: world.places() == world.held(), "nothing overlaps")
    (refused,) = [pod for pod in world.client.list(PODS) if pod["status"].get("phase") == "Failed"]
    assert refused["status"]["reason"] in ("UnexpectedAdmissionError", "OutOfgpuslice.dev/fit-0.6")


def test_a_force_deleted_pod_s_memory_stays_claimed_while_its_process_may_live(
    world: World,
) -> None:
    world.serving()
    world.share("0.6", 60)
    world.place("a", "0.6", 60, 0)
    eventually(lambda: world.states() == {"a": "Held"}, "held")
    world.client.delete(PODS, "a", namespace="default", grace_seconds=0)
    eventually(lambda: world.states() == {"a": "gone"}, "kept for the memory only")
    eventually(lambda: world.fits()["0.6"] == 1, "no claim of a fit, and no room")
    eventually(lambda: world.states() == {}, "buried")
    eventually(lambda: world.fits()["0.6"] == 2, "room again")


def test_a_reservation_ends_when_its_pod_is_gone(world: World) -> None:
    world.serving()
    pod = world.create("a", "0.6", 60)
    world.claim(pod, "0.6", 60, 0)
    world.client.delete(PODS, "a", namespace="default", grace_seconds=0)
    eventually(lambda: world.states() == {}, "reservation ended")


def test_a_deleted_ledger_comes_back_from_the_tokens(world: World) -> None:
    world.serving()
    world.share("0.6", 60)
    world.place("a", "0.6", 60, 1)
    eventually(lambda: world.states() == {"a": "Held"}, "held")
    world.client.delete(GPU_NODES, NODE)
    eventually(lambda: world.states() == {"a": "Held"} and world.is_serving(), "back")
    assert world.places() == world.held()


def test_fits_that_kubelet_zeroed_are_put_back(world: World) -> None:
    world.serving()
    zero = {"gpuslice.dev/fit-0.5": "0"}
    patch = {"status": {"capacity": zero, "allocatable": zero}}
    world.client.patch(NODES, NODE, patch, status=True)
    eventually(lambda: world.fits()["0.5"] == 4, "put back")


def test_a_fit_goes_with_its_share(world: World) -> None:
    world.serving()
    world.share("0.3", 30)
    assert world.fits()["0.3"] == 6
    world.client.delete(GPU_SHARES, "0.3")
    eventually(lambda: "0.3" not in world.fits(), "gone from both maps")


def test_a_cordoned_gpu_has_no_room_for_newcomers(world: World) -> None:
    world.serving()
    cordon = {"metadata": {"annotations": {"gpuslice.dev/cordon": "GPU-0"}}}
    world.client.patch(GPU_NODES, NODE, cordon)
    eventually(lambda: world.fits()["0.5"] == 2, "half the node")


def test_another_plugin_s_gpus_are_told_of(world: World) -> None:
    world.serving()
    theirs = {"nvidia.com/gpu": "2"}
    patch = {"status": {"capacity": theirs, "allocatable": theirs}}
    world.client.patch(NODES, NODE, patch, status=True)
    eventually(
        lambda: any(event["reason"] == "GpusSoldTwice" for event in world.client.list(EVENTS)),
        "an Event",
    )
