# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from gpuslice.sim.kubelet import checkpoint
from gpuslice.sim.kubelet.devices import AllocationError, Device, Devices, PanicError
from gpuslice.sim.kubelet.holdings import Holding, Holdings

THING = "example.com/thing"


def new_devices(healthy: str, unhealthy: str = "") -> Devices:
    devices = Devices(Random(1))
    listed = [Device(id=each, healthy=True) for each in healthy]
    devices.replace(THING, listed + [Device(id=each, healthy=False) for each in unhealthy])
    return devices


def give(devices: Devices, pod: str, required: int, *, preferred: str = "") -> frozenset[str]:
    choice = devices.begin(pod_uid=pod, container="main", resource=THING, required=required)
    assert choice is not None
    ids = devices.finish(choice, preferred)
    devices.hold(choice, b"")
    return ids


def refusal(devices: Devices, pod: str, required: int) -> str:
    with pytest.raises(AllocationError) as caught:
        devices.begin(pod_uid=pod, container="main", resource=THING, required=required)
    return str(caught.value)


def test_preferred_devices_are_taken_first() -> None:
    assert give(new_devices("abcdef"), "one", 3, preferred="fxb") >= {"b", "f"}


def test_a_device_that_is_in_use_is_no_candidate() -> None:
    devices = new_devices("ab")
    taken = give(devices, "one", 1)
    assert give(devices, "two", 1, preferred=min(taken)).isdisjoint(taken)


def test_unhealthy_devices_are_no_candidates() -> None:
    assert refusal(new_devices("a", "b"), "one", 2) == (
        f"requested number of devices unavailable for {THING}. Requested: 2, Available: 1"
    )


def test_a_container_that_has_its_devices_gets_no_others() -> None:
    devices = new_devices("ab")
    give(devices, "one", 1)
    again = devices.begin(pod_uid="one", container="main", resource=THING, required=1)
    assert again is None


def test_a_changed_request_is_refused() -> None:
    devices = new_devices("ab")
    give(devices, "one", 1)
    assert refusal(devices, "one", 2) == (
        f'pod "one" container "main" changed request for resource "{THING}" from 1 to 2'
    )


def test_devices_that_became_unhealthy_are_not_given_again() -> None:
    devices = new_devices("ab")
    (held,) = give(devices, "one", 1)
    devices.replace(THING, [Device(id=each, healthy=each != held) for each in "ab"])
    assert refusal(devices, "one", 1) == (
        "previously allocated devices are no longer healthy; "
        f"cannot allocate unhealthy devices {THING}"
    )


def test_a_container_that_runs_already_is_accepted_as_it_is() -> None:
    devices = new_devices("a")
    give(devices, "one", 1)
    devices.mark_unhealthy(THING)
    accepted = devices.begin(
        pod_uid="one", container="main", resource=THING, required=1, already_running=True
    )
    assert accepted is None
    assert "no healthy devices present" in refusal(devices, "one", 1)


def test_an_unregistered_resource_that_was_held_once_is_refused() -> None:
    devices = new_devices("a")
    give(devices, "one", 1)
    devices.forget(THING)
    assert devices.is_known(THING)
    assert refusal(devices, "two", 1) == f"cannot allocate unregistered device {THING}"


def test_reusable_devices_are_taken_without_a_question() -> None:
    devices = new_devices("abc")
    choice = devices.begin(
        pod_uid="one", container="main", resource=THING, required=2, reusable={"a", "b"}
    )
    assert choice is not None
    assert (choice.needed, choice.taken) == (0, {"a", "b"})


def test_too_few_reusable_devices_must_be_included() -> None:
    devices = new_devices("abcd")
    give(devices, "other", 1, preferred="d")
    devices.in_use[THING].add("a")
    choice = devices.begin(
        pod_uid="one", container="main", resource=THING, required=2, reusable={"a"}
    )
    assert choice is not None
    assert choice.must_include == {"a"}
    assert choice.available == {"a", "b", "c"}


def test_a_plugin_that_is_away_leaves_its_capacity() -> None:
    devices = new_devices("ab", "c")
    assert devices.counts() == {THING: (3, 2)}
    devices.mark_unhealthy(THING)
    assert devices.counts() == {THING: (3, 0)}
    devices.forget(THING)
    assert devices.counts() == {}


def test_devices_with_topology_are_filed_under_each_of_their_nodes() -> None:
    devices = Devices(Random(1))
    devices.replace(THING, [Device(id="a", healthy=True, numa_nodes=(0, 1))])
    give(devices, "one", 1)
    (holding,) = devices.holdings
    assert holding.ids_by_numa == {0: ("a",), 1: ("a",)}
    assert holding.ids == {"a"}


def test_health_is_what_the_plugin_said_last() -> None:
    devices = new_devices("a", "b")
    devices.mark_unhealthy(THING)
    assert [devices.health(THING, each) for each in "abc"] == ["Healthy", "Unhealthy", "Healthy"]


def test_a_device_that_is_no_longer_listed_crashes_kubelet() -> None:
    devices = new_devices("a")
    choice = devices.begin(pod_uid="one", container="main", resource=THING, required=1)
    assert choice is not None
    devices.finish(choice, ())
    devices.replace(THING, [Device(id="b", healthy=True)])
    with pytest.raises(PanicError):
        devices.hold(choice, b"")


def saved() -> checkpoint.Checkpoint:
    holding = Holding(
        pod_uid="one",
        container="main",
        resource=THING,
        ids_by_numa={-1: ("a", "b")},
        response=b"\x00\xff",
    )
    return checkpoint.Checkpoint(holdings=Holdings((holding,)), registered={THING: ("a", "b")})


def test_a_checkpoint_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    checkpoint.write(path, saved())
    found = checkpoint.read(path)
    assert found is not None
    assert list(found.holdings) == list(saved().holdings)
    assert found.registered == saved().registered
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_without_a_file_there_is_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoint.read(tmp_path / "file") is None


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{}", id="no data"),
        pytest.param(b"[]", id="a list"),
        pytest.param(checkpoint.encode(saved())[:-20], id="torn"),
        pytest.param(checkpoint.encode(saved()).replace(b'"b"', b'"c"'), id="changed"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_said_to_be_none(content: bytes) -> None:
    with pytest.raises(checkpoint.CheckpointError):
        checkpoint.decode(content)
