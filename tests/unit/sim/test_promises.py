# SPDX-License-Identifier: Apache-2.0
"""The demo's promises: a world in which they hold, and each way in which one breaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuslice.sim.observation import HandOut, Observation, RealGpu
from gpuslice.sim.promises import arrivals, environment, halves, ledger, memory, safety

MEMORY_MIB = 23034
HALF = {"gpu-fraction": "0.5"}
NODES = {"node-a": "GPU-a", "node-b": "GPU-b", "node-c": "GPU-c"}
EXPLANATION = "  node-a  0  0 (0 MiB)\n  node-b  0  0 (0 MiB)\n"


def pod(name: str, asked: dict[str, str], node: str = "", **status: Any) -> dict[str, Any]:
    told = {"gpuslice.dev/gpu": NODES[node]} if node else {}
    if node and "gpu-memory" in asked:
        told["gpuslice.dev/memory-mib"] = asked["gpu-memory"]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "annotations": asked | told},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": "Running" if node else "Pending"} | status,
    }


def waits(name: str, asked: dict[str, str], words: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "message": words}
    return pod(name, asked, conditions=[condition])


def hand_out(
    name: str, node: str, share: str, numbers: range, mib: int, *, portion: str
) -> HandOut:
    gpu = NODES[node]
    return HandOut(
        node=node,
        namespace="default",
        pod=name,
        uid=f"uid-{name}",
        container="ubuntu",
        tokens=tuple(f"{gpu}::{number}" for number in numbers),
        environment={
            "NVIDIA_VISIBLE_DEVICES": gpu,
            "RUNAI_NUM_OF_GPUS": portion,
            "GPU_PORTION": portion,
            "GPUSLICE_SHARE": share,
            "GPUSLICE_GPU": gpu,
            "GPUSLICE_MEMORY_LIMIT_MIB": str(mib),
            "GPUSLICE_SLICES": str(len(numbers)),
        },
    )


def half(name: str, node: str, first: int) -> HandOut:
    return hand_out(name, node, "0.5", range(first, first + 50), 11517, portion="0.50")


def world() -> Observation:
    """Two nodes, five halves: the fifth waits."""
    homes = [("p1", "node-a", 0), ("p2", "node-a", 50), ("p3", "node-b", 0), ("p4", "node-b", 50)]
    words = "0/2 nodes are available: 2 Insufficient gpuslice.dev/fit-0.5."
    return Observation(
        gpus=tuple(
            RealGpu(node=node, uuid=NODES[node], memory_mib=MEMORY_MIB)
            for node in ("node-a", "node-b")
        ),
        pods=(*(pod(name, HALF, node) for name, node, _ in homes), waits("p5", HALF, words)),
        hand_outs=tuple(half(name, node, first) for name, node, first in homes),
        gpu_nodes=tuple(
            gpu_node(node, *((name, "0.5", 11517, 50) for name, home, _ in homes if home == node))
            for node in ("node-a", "node-b")
        ),
    )


def gpu_node(node: str, *claims: tuple[str, str, int, int]) -> dict[str, Any]:
    return {
        "metadata": {"name": node},
        "status": {
            "claims": [
                {
                    "pod": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
                    "container": "ubuntu",
                    "share": share,
                    "state": "Held",
                    "shape": [{"gpu": NODES[node], "memoryMiB": mib, "slices": slices}],
                }
                for name, share, mib, slices in claims
            ]
        },
    }


def with_pod(seen: Observation, changed: dict[str, Any]) -> Observation:
    others = (each for each in seen.pods if each["metadata"]["name"] != changed["metadata"]["name"])
    return dataclasses.replace(seen, pods=(*others, changed))


def with_hand_out(seen: Observation, changed: HandOut) -> Observation:
    others = (each for each in seen.hand_outs if each.pod != changed.pod)
    return dataclasses.replace(seen, hand_outs=(*others, changed))


def of_halves(seen: Observation) -> Iterator[str]:
    return halves.faults(seen, EXPLANATION)


def of_safety(seen: Observation) -> Iterator[str]:
    return safety.faults(seen, 100)


@pytest.mark.parametrize(
    "faults", [of_halves, of_safety, environment.faults, ledger.faults], ids=["1", "*", "2", "5"]
)
def test_a_right_world_has_no_fault(faults: Callable[[Observation], Iterator[str]]) -> None:
    assert list(faults(world())) == []


REFUSED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU has room"}


@pytest.mark.parametrize(
    ("faults", "broken", "said"),
    [
        pytest.param(
            of_halves,
            with_pod(world(), pod("p5", HALF, "node-a")),
            "5 pods run and 0 wait; right would be 4 and 1",
            id="1: the fifth runs",
        ),
        pytest.param(
            of_halves,
            with_pod(world(), waits("p5", HALF, "0/2 nodes are available.")),
            "the scheduler doesn't name the missing fit",
            id="1: no reason",
        ),
        pytest.param(
            of_halves,
            with_hand_out(world(), half("p3", "node-a", 100)),
            "GPU GPU-a of node node-a has 3 pods, not 2",
            id="1: three on one GPU",
        ),
        pytest.param(
            of_safety,
            with_pod(world(), pod("p5", HALF, "node-a", **REFUSED)),
            "pod p5 was rejected by its kubelet: UnexpectedAdmissionError: no GPU has room",
            id="a rejected pod",
        ),
        pytest.param(
            of_safety,
            with_hand_out(world(), half("p2", "node-a", 49)),
            "token GPU-a::49 of node node-a is handed out 2 times",
            id="one token twice",
        ),
        pytest.param(
            of_safety,
            with_hand_out(
                with_pod(world(), pod("p5", {"gpu-memory": "1"}, "node-a")),
                hand_out("p5", "node-a", "1mi", range(100, 101), 1, portion="0.01"),
            ),
            "has 23034 MiB, and 23035 MiB of it are promised: two claims share MiB (p1, p2, p5)",
            id="one MiB twice",
        ),
        pytest.param(
            of_safety,
            with_hand_out(world(), half("p1", "node-b", 100)),
            "pod p1 is told to be on GPU GPU-a, and kubelet gave it tokens of GPU-b",
            id="tokens on another GPU",
        ),
        pytest.param(
            environment.faults,
            with_hand_out(
                world(), hand_out("p1", "node-a", "0.5", range(50), 11518, portion="0.50")
            ),
            "sees GPUSLICE_MEMORY_LIMIT_MIB=11518; right would be 11517",
            id="2: one MiB too many",
        ),
        pytest.param(
            environment.faults,
            dataclasses.replace(world(), hand_outs=()),
            "pod p1 runs without tokens of exactly one GPU",
            id="2: no tokens",
        ),
        pytest.param(
            ledger.faults,
            dataclasses.replace(world(), gpu_nodes=(gpu_node("node-a"),)),
            "only the kubelet says: p1/ubuntu has 11517 MiB and 50 slices of GPU-a on node-a",
            id="5: a claim is missing",
        ),
        pytest.param(
            ledger.faults,
            dataclasses.replace(world(), hand_outs=world().hand_outs[1:]),
            "only the ledger says: p1/ubuntu",
            id="5: a claim too many",
        ),
    ],
)
def test_each_breach_is_said(
    faults: Callable[[Observation], Iterator[str]], broken: Observation, said: str
) -> None:
    assert any(said in fault for fault in faults(broken)), list(faults(broken))


MEMORY = {"gpu-memory": "4000"}


def memory_world() -> Observation:
    """A half and two memory shares on the third node; a third memory share waits."""
    mine = [
        half("p5", "node-c", 0),
        hand_out("m1", "node-c", "4000mi", range(50, 67), 4000, portion="0.18"),
        hand_out("m2", "node-c", "4000mi", range(67, 84), 4000, portion="0.18"),
    ]
    return Observation(
        gpus=(RealGpu(node="node-c", uuid="GPU-c", memory_mib=MEMORY_MIB),),
        pods=(
            pod("p5", HALF, "node-c"),
            pod("m1", MEMORY, "node-c"),
            pod("m2", MEMORY, "node-c"),
            waits("m3", MEMORY, "0/3 nodes are available."),
        ),
        hand_outs=tuple(mine),
        gpu_nodes=(),
    )


def test_two_memory_shares_beside_a_half_are_right_and_their_environment_too() -> None:
    seen = memory_world()
    assert list(memory.faults_while_waiting(seen, "p5", "node-c 3517 MiB")) == []
    assert list(environment.faults(seen)) == []


def test_a_third_memory_share_on_the_gpu_breaks_both_the_promise_and_safety() -> None:
    seen = with_pod(memory_world(), pod("m3", MEMORY, "node-c"))
    seen = with_hand_out(
        seen, hand_out("m3", "node-c", "4000mi", range(84, 100), 4000, portion="0.18")
    )
    said = list(memory.faults_while_waiting(seen, "p5", "node-c 3517 MiB"))
    assert "3 memory shares run (m1, m2, m3), not 2" in said
    assert any("23517 MiB of it are promised" in fault for fault in safety.faults(seen, 100))


def test_at_the_end_the_third_memory_share_must_run() -> None:
    assert "pod m3 still waits" in list(memory.faults_at_the_end(memory_world()))


def test_of_three_arrivals_two_run_apart_and_one_waits() -> None:
    big = {"gpu-fraction": "0.6"}
    seen = Observation(
        gpus=(),
        pods=(
            pod("one", big, "node-a"),
            pod("two", big, "node-b"),
            waits("three", big, "no room"),
        ),
        hand_outs=(
            hand_out("one", "node-a", "0.6", range(60), 13820, portion="0.60"),
            hand_out("two", "node-b", "0.6", range(60), 13820, portion="0.60"),
        ),
        gpu_nodes=(),
    )
    arrived = ("one", "two", "three")
    assert list(arrivals.faults_of_three(seen, arrived)) == []
    together = with_hand_out(
        seen, hand_out("two", "node-a", "0.6", range(40, 100), 1, portion="0.60")
    )
    assert list(arrivals.faults_of_three(together, arrived)) == [
        "one and two are on one GPU, which can't hold both"
    ]
    assert "zero has ended, and three doesn't run" in list(
        arrivals.faults_of_turn(seen, "three", "zero", ("GPU-a",))
    )
    assert list(arrivals.faults_of_turn(seen, "two", "zero", ("GPU-a",))) == [
        "two runs on GPU GPU-b, not on that of zero, GPU-a"
    ]
