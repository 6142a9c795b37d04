# SPDX-License-Identifier: Apache-2.0
"""Laws of memory for sale, of merging looks, and of illness."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.diagnosis import Diagnosis
from deviceplugin.inventory import (
    MIB,
    Gpu,
    Inventory,
    Reading,
    Unreadable,
    for_sale,
    inventory_of,
    merge,
    spec_of,
)
from gpuslice.contract.names import GpuUuid
from gpuslice.contract.slices import SliceRule

UUIDS = [GpuUuid(f"GPU-{letter}") for letter in "abcde"]
uuids = st.sampled_from(UUIDS)


@st.composite
def gpus(draw: st.DrawFn) -> Gpu:
    return Gpu(
        uuid=draw(uuids),
        index=draw(st.integers(0, 7)),
        product=draw(st.sampled_from(["NVIDIA L4", "Tesla T4"])),
        memory_mib=draw(st.integers(1, 200_000)),
        reserved_mib=draw(st.integers(0, 2000)),
        numa_node=draw(st.none() | st.integers(0, 3)),
    )


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    found = draw(st.lists(gpus(), unique_by=lambda gpu: gpu.uuid))
    others = [uuid for uuid in UUIDS if uuid not in {gpu.uuid for gpu in found}]
    silent = draw(st.lists(st.sampled_from([*others, None]), max_size=3))
    return Reading(
        gpus=tuple(found),
        unreadable=tuple(
            Unreadable(index=index, uuid=uuid, reason="lost") for index, uuid in enumerate(silent)
        ),
        partitioned=draw(st.frozensets(st.sampled_from(others))) if others else frozenset(),
    )


@given(total=st.integers(1, 2**40), reserved=st.integers(0, 2**40))
def test_nothing_is_sold_that_is_reserved_or_not_there(total: int, reserved: int) -> None:
    memory_mib, reserved_mib = for_sale(total, reserved)
    assert memory_mib >= 0
    assert reserved_mib >= 0
    assert memory_mib * MIB <= max(0, total - reserved) < (memory_mib + 1) * MIB
    assert memory_mib + reserved_mib == total // MIB


@given(st.lists(readings(), min_size=1, max_size=6))
def test_every_gpu_ever_read_stays_known_and_the_last_look_decides(looks: list[Reading]) -> None:
    known = Inventory()
    ever: dict[GpuUuid, Gpu] = {}
    for look in looks:
        known = merge(known, look)
        ever.update({gpu.uuid: gpu for gpu in look.gpus})
    last = {gpu.uuid for gpu in looks[-1].gpus}
    assert {gpu.uuid for gpu in known.gpus} == set(ever)
    for gpu in known.gpus:
        assert gpu.healthy == (gpu.uuid in last)
        assert bool(gpu.reason) != gpu.healthy
        assert (gpu.memory_mib, gpu.index) == (ever[gpu.uuid].memory_mib, ever[gpu.uuid].index)
    assert merge(known, looks[-1]) == known


@given(st.lists(gpus(), unique_by=lambda gpu: gpu.uuid))
def test_an_inventory_survives_the_way_through_the_api(found: list[Gpu]) -> None:
    inventory = merge(Inventory(), Reading(gpus=tuple(found)))
    assert inventory_of(spec_of(inventory, SliceRule(), mode="time-slicing")) == inventory


events = st.tuples(st.just("event"), uuids)
looks = st.tuples(st.just("look"), st.frozensets(uuids))


@given(st.integers(1, 5), st.lists(events | looks, max_size=60))
def test_a_gpu_is_well_only_after_good_looks_in_a_row(needed: int, history: list[tuple]) -> None:
    diagnosis = Diagnosis(recover_after_reads=needed)
    good_in_a_row = dict.fromkeys(UUIDS, needed)
    for kind, what in history:
        if kind == "event":
            diagnosis = diagnosis.after_event(what, "XID 79")
            good_in_a_row[what] = 0
        else:
            diagnosis = diagnosis.after_read(dict.fromkeys(what, "lost"))
            for uuid in UUIDS:
                good_in_a_row[uuid] = 0 if uuid in what else good_in_a_row[uuid] + 1
        for uuid in UUIDS:
            if good_in_a_row[uuid] == 0:
                assert uuid in diagnosis.reasons
            if uuid not in diagnosis.reasons:
                assert good_in_a_row[uuid] >= needed


@given(st.lists(events | looks, max_size=60))
def test_every_gpu_recovers_and_is_forgotten_in_the_end(history: list[tuple]) -> None:
    diagnosis = Diagnosis(recover_after_reads=1)
    for kind, what in history:
        if kind == "event":
            diagnosis = diagnosis.after_event(what, "XID 79")
        else:
            diagnosis = diagnosis.after_read(dict.fromkeys(what, "lost"))
    for _ in range(32 + 320):
        diagnosis = diagnosis.after_read({})
    assert diagnosis.courses == {}
