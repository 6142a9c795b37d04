# SPDX-License-Identifier: Apache-2.0
"""A GPU that a claim names is shown to kubelet, whatever the hardware says of it."""

from __future__ import annotations

from deviceplugin import inventory, stock
from deviceplugin.inventory import GONE, Inventory
from gpuslice.contract import gpunode
from gpuslice.contract.names import GpuUuid, NodeName
from gpuslice.contract.slices import SliceRule
from tests.unit.deviceplugin.claims import HELD, claim, gpu, ledger

RULE = SliceRule()


def found(*indexes: int) -> Inventory:
    return Inventory(
        gpus=tuple(
            inventory.Gpu(
                uuid=GpuUuid(f"GPU-{index}"), index=index, product="NVIDIA L4", memory_mib=23034
            )
            for index in indexes
        )
    )


def recorded(*indexes: int, claimed: int) -> dict[str, object]:
    made = ledger(tuple(map(gpu, indexes)), claim("a", "0.5", 50, gpu(claimed), state=HELD))
    return {
        "metadata": {"name": "node-a", "annotations": {"gpuslice.dev/cordon": "GPU-0"}},
        "spec": inventory.spec_of(found(*indexes), RULE, mode="time-slicing"),
        "status": gpunode.status_of(made),
    }


def test_nothing_is_known_before_the_first_look() -> None:
    assert stock.known(None, None) is None


def test_before_the_first_look_the_recorded_gpus_are_there_but_sick() -> None:
    known = stock.known(None, recorded(0, 1, claimed=1))
    assert known is not None
    assert [(gpu.uuid, gpu.healthy, gpu.reason) for gpu in known.gpus] == [
        ("GPU-0", False, GONE),
        ("GPU-1", False, GONE),
    ]


def test_a_missing_gpu_stays_while_a_claim_names_it_and_goes_otherwise() -> None:
    claimed = stock.known(found(0), recorded(0, 1, claimed=1))
    unclaimed = stock.known(found(0), recorded(0, 1, claimed=0))
    assert claimed is not None
    assert unclaimed is not None
    assert [(gpu.uuid, gpu.healthy) for gpu in claimed.gpus] == [("GPU-0", True), ("GPU-1", False)]
    assert [gpu.uuid for gpu in unclaimed.gpus] == ["GPU-0"]


def test_the_ledger_has_today_s_gpus_with_the_cordon_and_the_claims_as_read() -> None:
    made = stock.ledger_of(NodeName("node-a"), found(0, 1, 2), RULE, recorded(0, 1, claimed=1))
    assert [(gpu.uuid, gpu.cordoned) for gpu in made.gpus] == [
        ("GPU-0", True),
        ("GPU-1", False),
        ("GPU-2", False),
    ]
    assert [each.pod.name for each in made.claims] == ["a"]


def test_without_an_object_there_are_no_claims_and_nothing_is_served() -> None:
    made = stock.ledger_of(NodeName("node-a"), found(0), RULE, None)
    assert (len(made.gpus), made.claims, made.serving) == (1, (), False)
