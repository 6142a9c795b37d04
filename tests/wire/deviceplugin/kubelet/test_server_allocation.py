# SPDX-License-Identifier: Apache-2.0
"""kubelet asks over real sockets; each pod gets tokens of the GPUs that its claim names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from deviceplugin.devices import device_list
from gpuslice.contract.ledger import Ledger
from gpuslice.contract.names import SLICE_RESOURCE
from gpuslice.sim.kubelet.bare import BareKubelet
from protos.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from tests.wire.deviceplugin.kubelet.plug import Plug, eventually, gpu, plugged, pod, reserved

GPUS = (gpu(0), gpu(1, memory_mib=15000))


@pytest.fixture
def plug(kubelet: BareKubelet) -> Iterator[Plug]:
    kubelet.start()
    with plugged(kubelet, *GPUS) as made:
        eventually(lambda: made.healthy == (200, 200), "registered")
        yield made


@pytest.fixture
def stub(plug: Plug) -> Iterator[api_pb2_grpc.DevicePluginStub]:
    (path,) = plug.kubelet.plugin_folder.glob("gpuslice-*.sock")
    with dial(path) as channel:
        yield api_pb2_grpc.DevicePluginStub(channel)


def dial(path: Path) -> grpc.Channel:
    return grpc.insecure_channel(f"unix://{path}", [("grpc.default_authority", "localhost")])


def test_a_pod_gets_its_tokens_from_the_gpu_of_its_claim(plug: Plug) -> None:
    plug.knows(reserved("a", "0.6", 60, GPUS[1]))
    assert plug.kubelet.admit(pod("a", 60)) is None
    assert {token.partition("::")[0] for token in plug.tokens("a")} == {"GPU-1"}


def test_a_container_is_told_its_share_in_its_environment(plug: Plug) -> None:
    plug.knows(reserved("a", "4000mi", 17, GPUS[0]))
    assert plug.kubelet.admit(pod("a", 17)) is None
    environment = plug.kubelet.container_env("uid-a", "main")
    assert environment == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0",
        "RUNAI_NUM_OF_GPUS": "0.18",
        "GPU_PORTION": "0.18",
        "GPUSLICE_SHARE": "4000mi",
        "GPUSLICE_GPU": "GPU-0",
        "GPUSLICE_MEMORY_LIMIT_MIB": "4000",
        "GPUSLICE_SLICES": "17",
    }


def test_equal_pods_at_once_get_different_claims(plug: Plug) -> None:
    """Each grant in flight stands for one claim, though nobody knows yet for which pod."""
    plug.knows(reserved("a", "0.6", 60, GPUS[0]), reserved("b", "0.6", 60, GPUS[1]))
    assert plug.kubelet.admit(pod("b", 60)) is None
    assert plug.kubelet.admit(pod("a", 60)) is None
    gpus = [{token.partition("::")[0] for token in plug.tokens(name)} for name in "ab"]
    assert sorted(map(sorted, gpus)) == [["GPU-0"], ["GPU-1"]]


def test_a_claim_on_two_gpus_gets_half_of_its_tokens_on_each(plug: Plug) -> None:
    plug.knows(reserved("a", "2x0.5", 50, *GPUS))
    assert plug.kubelet.admit(pod("a", 100)) is None
    on = [token.partition("::")[0] for token in plug.tokens("a")]
    assert (on.count("GPU-0"), on.count("GPU-1")) == (50, 50)
    assert plug.kubelet.container_env("uid-a", "main")["GPUSLICE_MEMORY_LIMIT_MIB"] == "11517,7500"


def test_a_pod_for_which_nothing_is_claimed_is_refused_with_the_reason(plug: Plug) -> None:
    plug.knows(reserved("a", "0.6", 60, GPUS[1]))
    rejection = plug.kubelet.admit(pod("x", 50))
    assert rejection is not None
    assert rejection.reason == "UnexpectedAdmissionError"
    assert "no pod on this node waits for 50 slices" in rejection.message
    assert plug.allocator.view.in_flight == ()


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        pytest.param([], "asks for no token", id="empty"),
        pytest.param(["GPU-0::1", "GPU-0::1"], "named twice", id="duplicate"),
        pytest.param(["GPU-7::1"], "has no token", id="unknown GPU"),
        pytest.param(["GPU-0::100"], "has no token", id="number beyond the GPU's"),
        pytest.param(["GPU-0::01"], "is no token", id="other spelling"),
        pytest.param(["nonsense"], "is no token", id="nonsense"),
        pytest.param(["GPU-0::1", "GPU-1::1"], "claim", id="of two GPUs"),
    ],
)
def test_ids_that_cannot_be_right_are_an_invalid_argument(
    plug: Plug, stub: api_pb2_grpc.DevicePluginStub, ids: list[str], said: str
) -> None:
    plug.knows(reserved("a", "0.02", 2, GPUS[0]), reserved("b", "0.01", 1, GPUS[0]))
    before = plug.allocator.view
    request = api_pb2.AllocateRequest(
        container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=ids)]
    )
    with pytest.raises(grpc.RpcError) as raised:
        stub.Allocate(request, timeout=5)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in raised.value.details()
    assert plug.allocator.view == before


def test_a_request_for_no_container_is_no_empty_answer(
    stub: api_pb2_grpc.DevicePluginStub,
) -> None:
    """Of an empty answer kubelet would keep the tokens marked as in use for ever."""
    with pytest.raises(grpc.RpcError) as raised:
        stub.Allocate(api_pb2.AllocateRequest(), timeout=5)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_new_stream_retires_the_old_one(plug: Plug, stub: api_pb2_grpc.DevicePluginStub) -> None:
    """Open streams keep threads, and kubelet has only one."""
    first = stub.ListAndWatch(api_pb2.Empty(), timeout=20)
    assert len(next(first).devices) == 200
    second = stub.ListAndWatch(api_pb2.Empty(), timeout=20)
    assert len(next(second).devices) == 200
    assert list(first) == []
    second.cancel()


def test_a_list_goes_out_only_when_it_changed_and_sick_tokens_stay_in_it(plug: Plug) -> None:
    """A token that vanishes while in use crashes kubelet."""
    sick = gpu(1, memory_mib=15000, healthy=False)
    plug.board.publish(device_list(GPUS))
    plug.board.publish(device_list((GPUS[0], sick)))
    eventually(lambda: plug.healthy == (200, 100), "100 of 200 healthy")
    plug.board.publish(device_list(GPUS))
    eventually(lambda: plug.healthy == (200, 200), "all healthy again")


def test_a_restarted_plugin_leaves_a_running_pod_alone(kubelet: BareKubelet) -> None:
    kubelet.start()
    with plugged(kubelet, *GPUS) as first:
        eventually(lambda: first.healthy == (200, 200), "registered")
        first.knows(reserved("a", "0.6", 60, GPUS[1]))
        assert kubelet.admit(pod("a", 60)) is None
        tokens = first.tokens("a")
    with plugged(kubelet, *GPUS) as second:
        eventually(lambda: second.healthy == (200, 200), "registered again")
        assert kubelet.restart() == {"uid-a": None}
        eventually(lambda: second.healthy == (200, 200), "registered with the new kubelet")
        assert second.tokens("a") == tokens


def test_a_kubelet_that_lost_its_checkpoint_gives_a_held_claim_new_tokens_on_its_gpu(
    plug: Plug,
) -> None:
    from gpuslice.contract.ledger import ClaimState

    plug.knows(reserved("a", "0.6", 60, GPUS[1]))
    ledger = plug.allocator.view.ledger
    held = ledger.with_state(ledger.claims[0].pod.uid, ClaimState.HELD)
    plug.allocator.update(held, tokens={}, unclaimed=())
    assert plug.kubelet.admit(pod("a", 60)) is None
    assert {token.partition("::")[0] for token in plug.tokens("a")} == {"GPU-1"}


def test_without_a_ledger_the_list_is_shown_all_the_same(plug: Plug) -> None:
    assert isinstance(plug.allocator.view.ledger, Ledger)
    assert plug.kubelet.counts()[0][SLICE_RESOURCE] == (200, 200)
