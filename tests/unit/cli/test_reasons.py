# SPDX-License-Identifier: Apache-2.0
"""Why a pod waits or what it has, from the ledgers."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpuslice.cli.reason_lines import lines_of, verdict
from gpuslice.cli.reasons import Elsewhere, Placed, Waiting, explain_pod
from gpuslice.contract.ledger import Claim, ClaimState, Gpu, Ledger, Part, PodRef
from gpuslice.contract.names import SLICE_RESOURCE, GpuUuid, NodeName, PodUid
from gpuslice.contract.shares import parse_share

MEMORY_MIB = 23034
HALF = 11517


def pod(name: str, share: str, slices: int, **status: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu-slice": str(slices), f"gpuslice.dev/fit-{share}": "1"}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {"gpuslice.dev/share": share}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending", **status},
    }


def claim(name: str, gpu: str, share: str, memory_mib: int, slices: int) -> Claim:
    return Claim(
        pod=PodRef(namespace="default", name=name, uid=PodUid(f"uid-{name}")),
        container="main",
        share=parse_share(share),
        fit=parse_share(share),
        state=ClaimState.HELD,
        shape=(Part(gpu=GpuUuid(gpu), memory_mib=memory_mib, slices=slices),),
    )


def ledger(node: str, *claims: Claim, **changes: Any) -> Ledger:
    gpu = Gpu(uuid=GpuUuid(f"GPU-{node}"), index=0, product="L4", memory_mib=MEMORY_MIB, slices=100)
    gpu = dataclasses.replace(gpu, **changes)
    return Ledger(node=NodeName(node), gpus=(gpu,), claims=claims)


FULL = ledger(
    "node-a",
    claim("one", "GPU-node-a", "0.5", HALF, 50),
    claim("two", "GPU-node-a", "0.5", HALF, 50),
)
PARTLY = ledger(
    "node-c",
    claim("five", "GPU-node-c", "0.5", HALF, 50),
    claim("mem-1", "GPU-node-c", "4000mi", 4000, 17),
    claim("mem-2", "GPU-node-c", "4000mi", 4000, 17),
)
UNSCHEDULED = {
    "conditions": [
        {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available."}
    ]
}


def test_a_waiting_pod_is_told_the_largest_free_share_of_each_node() -> None:
    lines = lines_of(
        explain_pod(pod("mem-3", "4000mi", 17, **UNSCHEDULED), [PARTLY, FULL], SLICE_RESOURCE)
    )
    assert lines == [
        "default/mem-3 is Pending: it asks for 4000mi, 4000 MiB of one GPU",
        "  the scheduler says: 0/2 nodes are available.",
        "  the ledger says: no single GPU has that much free",
        "  NODE     SUCH SHARES FIT   LARGEST FREE   NOTES",
        "  node-a   0                 0 MiB          -",
        "  node-c   0                 3517 MiB       -",
    ]


def test_a_fraction_is_told_the_largest_free_fraction() -> None:
    reason = explain_pod(pod("six", "0.5", 50), [PARTLY], SLICE_RESOURCE)
    assert isinstance(reason, Waiting)
    assert (reason.needs, reason.nodes[0].largest_free, reason.nodes[0].more) == (
        "11517 MiB",
        "0.152",
        0,
    )


def test_room_that_is_there_is_said_with_its_node() -> None:
    reason = explain_pod(pod("six", "0.1", 10), [FULL, PARTLY], SLICE_RESOURCE)
    assert isinstance(reason, Waiting)
    assert reason.more == 1
    assert verdict(reason).startswith("there is room on node-c: the scheduler tries again")


def test_closed_gpus_and_silent_nodes_are_named_with_their_cause() -> None:
    sick = ledger("node-s", healthy=False, reason="XID 79")
    cordoned = ledger("node-t", cordoned=True)
    away = ledger("node-u").with_serving(serving=False)
    lines = lines_of(explain_pod(pod("p", "0.5", 50), [sick, cordoned, away], SLICE_RESOURCE))
    assert "GPU-node-s unhealthy: XID 79" in lines[4]
    assert "GPU-node-t cordoned" in lines[5]
    assert "its device plugin is not serving" in lines[6]


def test_an_unlike_reservation_of_as_many_tokens_is_named() -> None:
    reserved = dataclasses.replace(
        claim("other", "GPU-node-a", "0.17", 3915, 17), state=ClaimState.RESERVED
    )
    reason = explain_pod(pod("p", "4000mi", 17), [ledger("node-a", reserved)], SLICE_RESOURCE)
    assert isinstance(reason, Waiting)
    assert str(reason.nodes[0].held_back_by) == "default/other"


def test_a_placed_pod_is_told_its_gpu_and_its_neighbours() -> None:
    bound = pod("mem-1", "4000mi", 17, phase="Running")
    reason = explain_pod(bound, [FULL, PARTLY], SLICE_RESOURCE)
    assert isinstance(reason, Placed)
    assert lines_of(reason) == [
        "default/mem-1 has 4000mi on node node-c (pod Running, claim Held)",
        "  GPU 0 GPU-node-c (L4)",
        "    4000 of 23034 MiB, 17 of 100 slices; 3517 MiB are free",
        "    beside default/five: 11517 MiB, 50 slices (Held)",
        "    beside default/mem-2: 4000 MiB, 17 slices (Held)",
    ]


def test_a_pod_without_a_claim_is_explained_by_its_state() -> None:
    plain = {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c"}]}}
    failed = pod("f", "0.5", 50, phase="Failed", reason="UnexpectedAdmissionError", message="m")
    bound = pod("b", "0.5", 50)
    bound["spec"]["nodeName"] = "node-a"
    whys = [explain_pod(each, [FULL], SLICE_RESOURCE) for each in (plain, failed, bound)]
    assert [each.why for each in whys if isinstance(each, Elsewhere)] == [
        "asks for no share of a GPU",
        "has ended (Failed) UnexpectedAdmissionError: m",
        "is on node node-a, whose ledger has no claim of it yet",
    ]


def test_without_any_ledger_the_missing_device_plugin_is_named() -> None:
    reason = explain_pod(pod("p", "0.5", 50), [], SLICE_RESOURCE)
    assert isinstance(reason, Waiting)
    assert verdict(reason) == "no node has a device plugin of gpuslice yet"
