# SPDX-License-Identifier: Apache-2.0
"""One bad sign makes a GPU sick, several good looks in a row make it well."""

from __future__ import annotations

import dataclasses

import pytest

from deviceplugin.diagnosis import WATCHED_FOR, Diagnosis, Xid, signs_in, struck_by
from deviceplugin.inventory import Gpu, Inventory, Reading
from gpuslice.contract.names import GpuUuid

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
THREE = Diagnosis(recover_after_reads=3)


def after_reads(diagnosis: Diagnosis, good: int) -> Diagnosis:
    for _ in range(good):
        diagnosis = diagnosis.after_read({})
    return diagnosis


def reads_to_recover(diagnosis: Diagnosis) -> int:
    for number in range(1000):
        if not diagnosis.reasons:
            return number
        diagnosis = diagnosis.after_read({})
    raise AssertionError("it never recovers")


def test_one_event_is_enough_and_strikes_one_gpu() -> None:
    assert THREE.after_event(A, "XID 79").reasons == {A: "XID 79"}


def test_recovery_takes_good_looks_in_a_row() -> None:
    sick = THREE.after_event(A, "XID 79")
    assert reads_to_recover(sick) == 3
    interrupted = after_reads(sick, 2).after_read({A: "GPU is lost"})
    assert reads_to_recover(interrupted) == 3


def test_a_second_event_begins_the_wait_anew_but_no_longer_one() -> None:
    sick = after_reads(THREE.after_event(A, "XID 79"), 2).after_event(A, "XID 62")
    assert sick.reasons == {A: "XID 62"}
    assert reads_to_recover(sick) == 3


def test_each_relapse_doubles_the_wait_up_to_a_limit() -> None:
    diagnosis, waits = THREE, []
    for _ in range(8):
        diagnosis = diagnosis.after_event(A, "XID 79")
        waits.append(reads_to_recover(diagnosis))
        diagnosis = after_reads(diagnosis, waits[-1])
    assert waits == [3, 6, 12, 24, 48, 96, 96, 96]


def test_a_gpu_that_stays_well_is_forgotten() -> None:
    recovered = after_reads(THREE.after_event(A, "XID 79"), 3)
    later = after_reads(recovered, 3 * WATCHED_FOR)
    assert later.courses == {}
    assert reads_to_recover(later.after_event(A, "XID 79")) == 3


def test_what_a_look_finds_does_not_hide_the_xid_that_caused_it() -> None:
    sick = THREE.after_event(A, "XID 79").after_read({A: "GPU is lost"})
    assert sick.reasons == {A: "XID 79"}
    by_look = THREE.after_read({A: "GPU is lost"}).after_read({A: "no memory"})
    assert by_look.reasons == {A: "no memory"}
    assert by_look.after_event(A, "XID 79").reasons == {A: "XID 79"}


def gpu(uuid: GpuUuid, parent: GpuUuid | None = None, number: int | None = None) -> Gpu:
    return Gpu(
        uuid=uuid,
        index=0,
        product="NVIDIA L4",
        memory_mib=1,
        mig_parent=parent,
        gpu_instance=number,
        compute_instance=None if number is None else 0,
    )


ONE, TWO = GpuUuid("MIG-1"), GpuUuid("MIG-2")
NODE = Inventory(gpus=(gpu(A), gpu(ONE, B, 1), gpu(TWO, B, 2)))


@pytest.mark.parametrize(
    ("xid", "expected"),
    [
        pytest.param(Xid(number=79, gpu=A), (A,), id="a whole GPU"),
        pytest.param(Xid(number=79, gpu=B), (ONE, TWO), id="a GPU that is cut"),
        pytest.param(
            Xid(number=94, gpu=B, gpu_instance=2, compute_instance=0), (TWO,), id="one instance"
        ),
        pytest.param(Xid(number=94, gpu=B, gpu_instance=1), (ONE,), id="all of a GPU instance"),
        pytest.param(Xid(number=94, gpu=B, gpu_instance=7), (), id="an instance not sold"),
        pytest.param(Xid(number=79, gpu=GpuUuid("GPU-x")), (), id="an unknown GPU"),
    ],
)
def test_an_xid_strikes_its_gpu_and_only_that(xid: Xid, expected: tuple[GpuUuid, ...]) -> None:
    assert struck_by(xid, NODE) == expected


def test_only_new_uncorrected_errors_are_a_sign() -> None:
    def signs(now: int, before: dict[GpuUuid, int]) -> dict[GpuUuid, str]:
        return signs_in(NODE, Reading(uncorrected_errors={B: now}), before)

    assert signs(7, {}) == {}
    assert signs(7, {B: 7}) == {}
    assert signs(0, {B: 7}) == {}
    assert signs(9, {B: 7}) == {
        ONE: "2 new uncorrected ECC errors",
        TWO: "2 new uncorrected ECC errors",
    }


def test_a_gpu_that_could_not_be_read_is_a_sign() -> None:
    sick = dataclasses.replace(NODE.gpus[0], healthy=False, reason="GPU is lost")
    assert signs_in(Inventory(gpus=(sick,)), Reading(), {}) == {A: "GPU is lost"}
