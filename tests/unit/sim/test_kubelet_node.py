# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from gpuslice.sim.kubelet import node

READY = [{"type": "Ready", "status": "True"}]
SLICE = "nvidia.com/gpu-slice"
FIT = "gpuslice.dev/fit-0.5"


def patched(
    capacity: dict[str, str],
    allocatable: dict[str, str],
    counts: dict[str, tuple[int, int]] | None = None,
    given_up: tuple[str, ...] = (),
) -> Any:
    status = {"capacity": capacity, "allocatable": allocatable, "conditions": READY}
    return node.status_patch(
        {"status": status}, own={"cpu": "2"}, counts=counts or {}, given_up=given_up
    )


CPU = {"cpu": "2"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(patched(CPU, CPU), {}, id="nothing to do"),
        pytest.param(
            patched(CPU, CPU, {SLICE: (4, 3)}),
            {"status": {"capacity": {SLICE: "4"}, "allocatable": {SLICE: "3"}}},
            id="a plugin's devices",
        ),
        pytest.param(
            patched(CPU | {SLICE: "4"}, CPU | {SLICE: "4"}, {SLICE: (4, 3)}),
            {"status": {"allocatable": {SLICE: "3"}}},
            id="health alone",
        ),
        pytest.param(
            patched(CPU | {SLICE: "4"}, CPU | {SLICE: "0"}, {}, (SLICE,)),
            {"status": {"capacity": {SLICE: "0"}}},
            id="given up",
        ),
        pytest.param(
            patched(CPU | {FIT: "5"}, CPU | {FIT: "3"}),
            {"status": {"allocatable": {FIT: "5"}}},
            id="an unknown key's allocatable follows",
        ),
        pytest.param(
            patched(CPU, CPU | {FIT: "3"}),
            {"status": {"allocatable": {FIT: None}}},
            id="allocatable alone goes",
        ),
        pytest.param(
            patched({"cpu": "9"}, {}),
            {"status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}}},
            id="the machine's own are set",
        ),
    ],
)
def test_the_status_patch_tells_what_differs(found: Any, expected: Any) -> None:
    assert found == expected


def test_a_node_that_is_not_ready_becomes_ready() -> None:
    status = {"capacity": CPU, "allocatable": CPU, "conditions": [{"type": "Ready"}, {"type": "X"}]}
    patch = node.status_patch({"status": status}, own=CPU, counts={}, given_up=())
    assert [(each["type"], each.get("status")) for each in patch["status"]["conditions"]] == [
        ("X", None),
        ("Ready", "True"),
    ]


def test_a_lost_checkpoint_zeroes_extended_resources_only() -> None:
    status = {"capacity": {"cpu": "2", SLICE: "4", FIT: "0", "hugepages-2Mi": "1"}}
    zeroed = {SLICE: "0"}
    assert node.reset_patch({"status": status}) == {
        "status": {"capacity": zeroed, "allocatable": zeroed}
    }
    assert node.reset_patch({"status": {"capacity": CPU}}) == {}


def test_a_new_node_is_named_by_its_labels() -> None:
    made = node.new_node("node-a", {"pool": "gpu"}, CPU)
    assert made["metadata"]["labels"]["kubernetes.io/hostname"] == "node-a"
    assert made["metadata"]["labels"]["pool"] == "gpu"
    assert node.status_patch(made, own=CPU, counts={}, given_up=()) == {}
