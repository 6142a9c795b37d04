# SPDX-License-Identifier: Apache-2.0
"""What KAI Scheduler's users know, row by row; docs/kai.md tells the differences."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.contract.shares import parse_share
from tests.unit.webhook.podmaking import (
    POLICY,
    SLICES,
    admitted,
    build_container,
    build_pod,
    limits_of,
    refused,
)
from webhook.mutation import Mutation, mutate
from webhook.policies import Fleet

CASES = yaml.safe_load(Path(__file__).with_name("kai.yaml").read_text(encoding="utf-8"))
KEYS = {
    "frac": "gpu-fraction",
    "mem": "gpu-memory",
    "num": "gpu-fraction-num-devices",
    "cname": "gpu-fraction-container-name",
}


def pod_of(case: dict[str, Any]) -> dict[str, Any]:
    annotations = {KEYS.get(key, key): value for key, value in case["ann"].items()}
    limits, init_limits = case.get("lim", {}), case.get("lim_init", {})
    names = case.get("containers") or [f"c{index}" for index in range(max([0, *limits]) + 1)]
    regular = [build_container(name, limits.get(index)) for index, name in enumerate(names)]
    init = [
        build_container(name, init_limits.get(index))
        for index, name in enumerate(case.get("init", []))
    ]
    return build_pod(annotations, *regular, **({"initContainers": init} if init else {}))


@pytest.mark.parametrize("case", CASES["requests"], ids=lambda case: case["id"])
def test_a_pod_of_kais_users_meets_what_it_should(case: dict[str, Any]) -> None:
    policy = dataclasses.replace(
        POLICY, enabled=case.get("enabled", True), runtime_class=case.get("runtime_class")
    )
    pod = pod_of(case)
    if case["want"] == "refuse":
        assert refused(pod, policy)
        return
    if case["want"] == "admit":
        after, _ = admitted(pod, policy)
        label = after["metadata"]["labels"]["gpuslice.dev/share"]
        assert label == case.get("share", label)
        asking = [
            SLICES in limits_of(after, index) for index in range(len(pod["spec"]["containers"]))
        ]
        assert asking.count(True) == 1
        assert asking[case.get("gets", 0)]
        assert after["spec"].get("runtimeClassName") == case.get("runtime_class_name")
        return
    result = mutate(pod, policy)
    assert isinstance(result, Mutation)
    assert result.operations == ()
    assert bool(result.warnings) == (case["want"] == "warn")


@pytest.mark.parametrize("case", CASES["per_container"], ids=lambda case: case["id"])
def test_shares_per_container_are_refused_with_the_supported_way(case: dict[str, Any]) -> None:
    pod = build_pod(case["ann"], build_container("c0"), build_container("c1"))
    assert "gpu-fraction-container-name" in refused(pod)


def test_f01_memory_is_exact_and_not_floored_to_hundreds() -> None:
    assert parse_share("0.5").memory_mib_on(4096) == 2048


def test_f04_all_of_a_gpus_memory_fits_on_it() -> None:
    assert parse_share("1000mi").memory_mib_on(1000) == 1000
    policy = dataclasses.replace(POLICY, fleet=Fleet(kinds_mib=(1000,), most_gpus=2))
    after, _ = admitted(build_pod({"gpu-memory": "1000"}), policy)
    assert limits_of(after)[SLICES] == "100"


def test_f16_two_times_two_fifths_are_four_fifths() -> None:
    pod = build_pod({"gpu-fraction": "0.4", "gpu-fraction-num-devices": "2"})
    after, _ = admitted(pod)
    assert limits_of(after)[SLICES] == "80"


def test_q23_a_name_is_looked_for_among_init_containers_first() -> None:
    pod = build_pod(
        {"gpu-fraction": "0.5", "gpu-fraction-container-name": "same"},
        build_container("same"),
        initContainers=[build_container("same", restartPolicy="Always")],
    )
    after, _ = admitted(pod)
    assert SLICES in limits_of(after, 0, "initContainers")
    assert SLICES not in limits_of(after)


def test_f20_sixty_per_cent_of_one_gpu_is_not_half_of_four() -> None:
    assert not parse_share("0.6").alike(parse_share("4x0.5"))


def test_q27_three_thirds_of_a_gpu_that_are_more_than_one_dont_fit() -> None:
    each = parse_share("0.3334").memory_mib_on(40900)
    assert 2 * each <= 40900 < 3 * each


def test_q29_memory_in_mib_is_what_the_pod_gets() -> None:
    assert parse_share("4096mi").memory_mib_on(15300) == 4096
