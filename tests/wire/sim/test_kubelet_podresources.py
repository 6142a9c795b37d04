# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator, Sequence

import grpc
import pytest

from gpuslice.sim.kubelet.bare import BareKubelet
from protos.podresources.v1 import api_pb2, api_pb2_grpc
from tests.wire.sim.toyplugin import Hours, Plug, build_container, build_pod, dial


@pytest.fixture
def lister(bare: BareKubelet) -> Iterator[api_pb2_grpc.PodResourcesListerStub]:
    with dial(bare.pod_resources_socket) as channel:
        yield api_pb2_grpc.PodResourcesListerStub(channel)


def get(lister: api_pb2_grpc.PodResourcesListerStub, name: str) -> api_pb2.PodResources:
    request = api_pb2.GetPodResourcesRequest(pod_name=name, pod_namespace="default")
    return lister.Get(request, timeout=5).pod_resources


def listed(lister: api_pb2_grpc.PodResourcesListerStub) -> Sequence[api_pb2.PodResources]:
    return lister.List(api_pb2.ListPodResourcesRequest(), timeout=5).pod_resources


def test_without_pods_there_is_nothing_to_list(lister: api_pb2_grpc.PodResourcesListerStub) -> None:
    assert list(listed(lister)) == []


def test_a_pod_is_listed_with_one_entry_for_each_device(
    bare: BareKubelet, plugged: Plug, lister: api_pb2_grpc.PodResourcesListerStub
) -> None:
    plugged("abc")
    bare.admit(build_pod("one", 2))
    bare.admit(build_pod("plain", 0))
    one, plain = listed(lister)
    (container,) = one.containers
    assert (one.name, one.namespace, container.name) == ("one", "default", "main")
    assert [list(each.device_ids) for each in container.devices] == [
        [device] for device in sorted(bare.allocations()["uid-one"]["main"]["example.com/thing"])
    ]
    assert not container.devices[0].HasField("topology")
    assert [list(each.devices) for each in plain.containers] == [[]]
    assert get(lister, "one") == one


def test_sidecars_are_listed_and_plain_init_containers_are_not(
    bare: BareKubelet, plugged: Plug, lister: api_pb2_grpc.PodResourcesListerStub
) -> None:
    plugged("ab")
    init = [build_container("init", 1), build_container("side", 1, restartPolicy="Always")]
    bare.admit(build_pod("one", 1, init=init))
    assert [each.name for each in get(lister, "one").containers] == ["side", "main"]


def test_get_of_an_unknown_pod_is_an_error(lister: api_pb2_grpc.PodResourcesListerStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        get(lister, "nobody")
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert caught.value.details() == "pod nobody in namespace default not found"


def test_get_knows_a_pod_until_kubelet_lets_it_go(
    bare: BareKubelet, plugged: Plug, lister: api_pb2_grpc.PodResourcesListerStub
) -> None:
    plugged("ab")
    bare.admit(build_pod("one"))
    bare.end_container("uid-one", "main")
    assert get(lister, "one").name == "one"
    bare.release("uid-one")
    with pytest.raises(grpc.RpcError):
        get(lister, "one")


def test_a_refused_pod_is_not_listed(
    bare: BareKubelet, plugged: Plug, lister: api_pb2_grpc.PodResourcesListerStub
) -> None:
    plugged("a")
    assert bare.admit(build_pod("one", 2)) is not None
    assert list(listed(lister)) == []


def test_list_frees_the_devices_of_pods_that_are_gone_and_get_does_not(
    bare: BareKubelet, plugged: Plug, lister: api_pb2_grpc.PodResourcesListerStub
) -> None:
    plugged("ab")
    bare.admit(build_pod("one"))
    bare.admit(build_pod("two"))
    bare.release("uid-one")
    get(lister, "two")
    assert bare._allocator.in_use() == {"example.com/thing": 2}
    listed(lister)
    assert bare._allocator.in_use() == {"example.com/thing": 1}


def test_allocatable_are_the_healthy_devices_in_use_or_not(
    bare: BareKubelet, plugged: Plug, lister: api_pb2_grpc.PodResourcesListerStub
) -> None:
    plugged(["a", ("b", "Unhealthy"), "c"])
    bare.admit(build_pod("one"))
    answer = lister.GetAllocatableResources(api_pb2.AllocatableResourcesRequest(), timeout=5)
    assert [(each.resource_name, list(each.device_ids)) for each in answer.devices] == [
        ("example.com/thing", ["a"]),
        ("example.com/thing", ["c"]),
    ]


def test_a_tight_loop_of_lists_is_held_up(
    lister: api_pb2_grpc.PodResourcesListerStub, clock: Hours
) -> None:
    for _ in range(10):
        listed(lister)
    with pytest.raises(grpc.RpcError) as caught:
        listed(lister)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == "rejected by rate limit"
    clock.now += 0.02
    listed(lister)
