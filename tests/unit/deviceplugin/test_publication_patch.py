# SPDX-License-Identifier: Apache-2.0
"""The Node says what follows from the ledger, and the patch says only what differs."""

from __future__ import annotations

from typing import Any

from deviceplugin import publication
from gpuslice.contract.names import SLICE_RESOURCE, ResourceName
from tests.unit.deviceplugin.claims import HELD, claim, demand, gpu, ledger, pod

GPUS = (gpu(0), gpu(1))
A, B = GPUS
HALF = ResourceName("gpuslice.dev/fit-0.5")


def node(**fits: str) -> dict[str, Any]:
    shown = {"cpu": "4", **{f"gpuslice.dev/fit-{key}": value for key, value in fits.items()}}
    return {"metadata": {"name": "node-a"}, "status": {"capacity": shown, "allocatable": shown}}


def patch(on: dict[str, Any], fits: dict[ResourceName, int], version: str = "7") -> Any:
    return publication.node_patch(on, fits_wanted=fits, labels_wanted={}, ledger_version=version)


def test_both_maps_get_every_fit_and_the_annotation_names_the_ledger() -> None:
    assert patch(node(), {HALF: 4}) == {
        "metadata": {"annotations": {"gpuslice.dev/ledger": "7"}},
        "status": {"capacity": {HALF: "4"}, "allocatable": {HALF: "4"}},
    }


def test_a_new_ledger_with_the_same_fits_is_told_too() -> None:
    """The arbiter waits for it."""
    shown = node(**{"0.5": "4"})
    shown["metadata"]["annotations"] = {"gpuslice.dev/ledger": "6"}
    assert patch(shown, {HALF: 4}) == {"metadata": {"annotations": {"gpuslice.dev/ledger": "7"}}}


def test_a_node_that_says_it_all_is_left_alone() -> None:
    shown = node(**{"0.5": "4"})
    shown["metadata"]["annotations"] = {"gpuslice.dev/ledger": "7"}
    assert patch(shown, {HALF: 4}) is None


def test_a_fit_that_kubelet_zeroed_is_put_back_in_both_maps() -> None:
    shown = node(**{"0.5": "0"})
    shown["metadata"]["annotations"] = {"gpuslice.dev/ledger": "7"}
    assert patch(shown, {HALF: 4}) == {
        "status": {"capacity": {HALF: "4"}, "allocatable": {HALF: "4"}}
    }


def test_a_fit_that_nobody_uses_goes_and_other_resources_stay() -> None:
    shown = node(**{"0.3": "2"})
    status = patch(shown, {})["status"]
    assert status == {
        "capacity": {"gpuslice.dev/fit-0.3": None},
        "allocatable": {"gpuslice.dev/fit-0.3": None},
    }


def test_a_fit_is_never_below_the_bound_pods_that_ask_for_it() -> None:
    """Kubelet adds them up again when it restarts, and would kill what is too many."""
    bound = [pod("a", "0.5", 50), pod("b", "0.5", 50), pod("c", "0.5", 50, phase="Failed")]
    empty = ledger(()).with_serving(serving=False)
    assert publication.values(empty, [], bound, SLICE_RESOURCE) == {HALF: 2}


def test_bound_pods_bring_their_own_fit_along() -> None:
    bound = [pod("a", "0.3", 30)]
    demands = publication.demands_of([demand("0.5", 50)], bound, SLICE_RESOURCE)
    assert set(demands) == {demand("0.5", 50), demand("0.3", 30)}


def test_of_one_share_the_largest_k_counts() -> None:
    demands = publication.demands_of([demand("0.5", 50), demand("0.5", 60)], [], SLICE_RESOURCE)
    assert demands == (demand("0.5", 60),)


def test_labels_tell_of_the_room_and_the_kind() -> None:
    made = ledger(GPUS, claim("a", "0.3", 30, A, state=HELD))
    assert publication.labels(made, "time-slicing") == {
        "gpuslice.dev/partial-room": "70",
        "gpuslice.dev/empty-gpus": "1",
        "gpuslice.dev/product": "NVIDIA-L4",
        "gpuslice.dev/memory-mib": "23034",
        "gpuslice.dev/mode": "time-slicing",
    }


def test_a_mixed_node_is_not_described_by_one_of_its_gpus() -> None:
    said = publication.labels(ledger((A, gpu(1, memory_mib=80000))), "time-slicing")
    assert said["gpuslice.dev/memory-mib"] is None


def test_a_node_without_gpus_has_no_labels() -> None:
    assert set(publication.labels(ledger(()), "time-slicing").values()) == {None}


def test_another_plugin_s_gpus_are_noticed() -> None:
    beside = node()
    beside["status"]["allocatable"] = {"nvidia.com/gpu": "2"}
    assert publication.whole_gpus_sold(beside) == 2
    assert publication.whole_gpus_sold(node()) == 0
