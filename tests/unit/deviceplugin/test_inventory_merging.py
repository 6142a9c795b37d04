# SPDX-License-Identifier: Apache-2.0
"""What stays known of a GPU when one more look finds it changed, silent or gone."""

from __future__ import annotations

import dataclasses

import pytest

from deviceplugin.inventory import (
    GONE,
    MIG_INSTANCE_GONE,
    MIG_TURNED_ON,
    Gpu,
    Inventory,
    Reading,
    Unreadable,
    for_sale,
    forget_retired,
    inventory_of,
    lacks_gpus,
    ledger_gpus,
    merge,
    spec_of,
    with_reasons,
)
from gpuslice.contract.gpunode import ledger_of
from gpuslice.contract.names import GpuUuid
from gpuslice.contract.slices import SliceBy, SliceRule


def make_gpu(uuid: str, index: int = 0, memory_mib: int = 23034) -> Gpu:
    return Gpu(uuid=GpuUuid(uuid), index=index, product="NVIDIA L4", memory_mib=memory_mib)


def make_instance(uuid: str, parent: str, number: int = 1) -> Gpu:
    return dataclasses.replace(
        make_gpu(uuid), mig_parent=GpuUuid(parent), gpu_instance=number, compute_instance=0
    )


A, B = make_gpu("GPU-a", 0), make_gpu("GPU-b", 1)
KNOWN = Inventory(gpus=(A, B))


def state(inventory: Inventory) -> dict[str, str]:
    """The reason of each GPU, "" for a healthy one."""
    assert all(gpu.healthy == (not gpu.reason) for gpu in inventory.gpus)
    return {gpu.uuid: gpu.reason for gpu in inventory.gpus}


def test_a_first_look_is_all_that_is_known() -> None:
    assert merge(Inventory(), Reading(gpus=(B, A))) == KNOWN


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        pytest.param(Reading(gpus=(A, B)), {"GPU-a": "", "GPU-b": ""}, id="nothing changed"),
        pytest.param(Reading(gpus=(A,)), {"GPU-a": "", "GPU-b": GONE}, id="gone"),
        pytest.param(
            Reading(gpus=(A,), unreadable=(Unreadable(index=1, uuid=None, reason="GPU is lost"),)),
            {"GPU-a": "", "GPU-b": "GPU is lost"},
            id="lost, nameless",
        ),
        pytest.param(
            Reading(gpus=(A,), unreadable=(Unreadable(index=1, uuid=B.uuid, reason="no memory"),)),
            {"GPU-a": "", "GPU-b": "no memory"},
            id="silent",
        ),
        pytest.param(
            Reading(gpus=(A,), partitioned=frozenset({B.uuid})),
            {"GPU-a": "", "GPU-b": MIG_TURNED_ON},
            id="MIG turned on",
        ),
        pytest.param(Reading(), {"GPU-a": GONE, "GPU-b": GONE}, id="all gone"),
    ],
)
def test_a_gpu_that_was_known_stays_known(reading: Reading, expected: dict[str, str]) -> None:
    assert state(merge(KNOWN, reading)) == expected


def test_a_gpu_keeps_its_facts_while_it_is_gone_and_comes_back() -> None:
    gone = merge(KNOWN, Reading(gpus=(A,)))
    assert gone.find("GPU-b") == dataclasses.replace(B, healthy=False, reason=GONE)
    assert merge(gone, Reading(gpus=(A, B))) == KNOWN


def test_the_newest_facts_win() -> None:
    moved = dataclasses.replace(B, index=0, memory_mib=23000)
    after = merge(KNOWN, Reading(gpus=(moved, dataclasses.replace(A, index=1))))
    assert [gpu.uuid for gpu in after.gpus] == ["GPU-b", "GPU-a"]
    assert after.gpus[0] == moved


def test_an_instance_that_was_destroyed_is_retired_and_can_be_forgotten() -> None:
    one, two = make_instance("MIG-1", "GPU-a"), make_instance("MIG-2", "GPU-a", 2)
    partitioned = frozenset({A.uuid})
    known = merge(Inventory(), Reading(gpus=(one, two), partitioned=partitioned))
    after = merge(known, Reading(gpus=(one,), partitioned=partitioned))
    assert state(after) == {"MIG-1": "", "MIG-2": MIG_INSTANCE_GONE}
    assert forget_retired(after, claimed={two.uuid}) == after
    assert state(forget_retired(after, claimed=set())) == {"MIG-1": ""}


def test_mig_turned_off_retires_the_instances_and_sells_the_whole() -> None:
    known = Inventory(gpus=(make_instance("MIG-1", "GPU-a"),))
    after = merge(known, Reading(gpus=(A,)))
    assert state(after) == {"GPU-a": "", "MIG-1": MIG_INSTANCE_GONE}
    assert state(forget_retired(after, claimed=set())) == {"GPU-a": ""}


def test_an_instance_of_a_lost_gpu_is_lost_and_not_retired() -> None:
    known = Inventory(gpus=(make_instance("MIG-1", "GPU-a"),))
    lost = Reading(unreadable=(Unreadable(index=0, uuid=None, reason="GPU is lost"),))
    after = merge(known, lost)
    assert state(after) == {"MIG-1": "GPU is lost"}
    assert forget_retired(after, claimed=set()) == after


def test_an_instance_is_not_retired_when_the_look_at_its_gpu_broke_off() -> None:
    known = Inventory(gpus=(make_instance("MIG-1", "GPU-a"),))
    broken = Reading(
        partitioned=frozenset({A.uuid}),
        unreadable=(Unreadable(index=0, uuid=A.uuid, reason="Unknown Error"),),
    )
    after = merge(known, broken)
    assert state(after) == {"MIG-1": "Unknown Error"}
    assert not after.gpus[0].retired


@pytest.mark.parametrize(
    ("known", "reading", "expected"),
    [
        pytest.param(KNOWN, Reading(gpus=(A, B)), False, id="all there"),
        pytest.param(KNOWN, Reading(gpus=(A,)), True, id="one gone"),
        pytest.param(Inventory(), Reading(), True, id="none at all"),
        pytest.param(
            Inventory(), Reading(partitioned=frozenset({A.uuid})), False, id="only a cut one"
        ),
        pytest.param(
            KNOWN, Reading(gpus=(A,), partitioned=frozenset({B.uuid})), False, id="one cut"
        ),
        pytest.param(
            Inventory(gpus=(A,)),
            Reading(gpus=(A,), unreadable=(Unreadable(index=1, uuid=None, reason="lost"),)),
            True,
            id="one never seen",
        ),
        pytest.param(
            Inventory(),
            Reading(unreadable=(Unreadable(index=0, uuid=A.uuid, reason="n/a", answers=True),)),
            False,
            id="one that has no memory to tell",
        ),
    ],
)
def test_only_gpus_that_may_show_up_are_lacking(
    known: Inventory, reading: Reading, *, expected: bool
) -> None:
    assert lacks_gpus(merge(known, reading), reading) == expected


def test_reasons_make_gpus_unhealthy() -> None:
    assert state(with_reasons(KNOWN, {A.uuid: "XID 79"})) == {"GPU-a": "XID 79", "GPU-b": ""}


@pytest.mark.parametrize(
    ("total", "reserved", "expected"),
    [
        pytest.param(10 * 2**20, 0, (10, 0), id="no reserve"),
        pytest.param(10 * 2**20, 1, (9, 1), id="a started MiB is the driver's"),
        pytest.param(10 * 2**20 + 5, 5, (10, 0), id="the reserve fills the broken MiB"),
        pytest.param(2**20 - 1, 0, (0, 0), id="less than a MiB"),
        pytest.param(2**20, 2**21, (0, 1), id="more reserved than there is"),
    ],
)
def test_memory_for_sale_is_rounded_down(
    total: int, reserved: int, expected: tuple[int, int]
) -> None:
    assert for_sale(total, reserved) == expected


# --- the wire


def test_the_spec_holds_what_the_ledger_reads() -> None:
    sick = dataclasses.replace(
        make_instance("MIG-1", "GPU-c"), index=2, numa_node=0, healthy=False, reason="XID 48"
    )
    inventory = Inventory(gpus=(A, B, sick))
    rule = SliceRule(slice_by=SliceBy.MEMORY, slice_memory_mib=1000)
    spec = spec_of(inventory, rule, mode="time-slicing")

    assert (spec["mode"], spec["sliceBy"]) == ("time-slicing", "memory")
    assert spec["gpus"][0] == {
        "uuid": "GPU-a",
        "index": 0,
        "product": "NVIDIA L4",
        "memoryMiB": 23034,
        "reservedMiB": 0,
        "slices": 23,
        "healthy": True,
        "reason": "",
    }
    assert (spec["gpus"][2]["numaNode"], spec["gpus"][2]["migParent"]) == (0, "GPU-c")
    ledger = ledger_of({"metadata": {"name": "node-a"}, "spec": spec})
    assert ledger.gpus == ledger_gpus(inventory, rule)


def test_a_restarted_agent_knows_what_its_spec_knew() -> None:
    sick = dataclasses.replace(B, healthy=False, reason="XID 79", numa_node=1, reserved_mib=3)
    inventory = Inventory(gpus=(A, sick))
    assert inventory_of(spec_of(inventory, SliceRule(), mode="mps")) == inventory
    assert inventory_of({}) == Inventory()
