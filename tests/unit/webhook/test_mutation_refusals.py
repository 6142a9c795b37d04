# SPDX-License-Identifier: Apache-2.0
"""What admission refuses, and what it says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpuslice.contract.slices import SliceBy, SliceRule
from tests.unit.webhook.podmaking import (
    POLICY,
    SLICES,
    admitted,
    build_container,
    build_pod,
    refused,
)
from webhook.mutation import Denial, Mutation, mutate

WHOLE = dataclasses.replace(POLICY, whole_gpu_resource="nvidia.com/gpu")
HALF = {"gpu-fraction": "0.5"}
_PLAIN_INIT = build_container("prepare")


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        pytest.param(
            build_pod(HALF, nodeName="node-a"), "kubernetes.io/hostname: node-a", id="nodeName"
        ),
        pytest.param(
            build_pod({**HALF, "gpu-memory": "4000"}), "stands beside gpu-fraction", id="both"
        ),
        pytest.param(
            build_pod({**HALF, "gpuslice.dev/gpu-fraction": "0.25"}), "differs", id="two values"
        ),
        pytest.param(
            build_pod({"gpu-fraction-num-devices": "2"}), "without a share", id="devices alone"
        ),
        pytest.param(
            build_pod({**HALF, "gpu-fraction-num-devices": "9"}), "from 1 to 8", id="too many"
        ),
        pytest.param(build_pod({"mps": "true"}), "without a share", id="mps alone"),
        pytest.param(build_pod({**HALF, "mps": "yes"}), "true or false", id="mps: yes"),
        pytest.param(
            build_pod({"gpu-memory": "23035"}), "more than any known GPU", id="larger than any"
        ),
        pytest.param(
            build_pod({**HALF, "gpu-fraction-container-name": "x"}),
            "no container of this pod (containers: train)",
            id="unknown container",
        ),
        pytest.param(
            build_pod({**HALF, "gpu-fraction-container-name": "a,b"}),
            "not the name of one container",
            id="several containers",
        ),
        pytest.param(
            build_pod(
                {**HALF, "gpu-fraction-container-name": "prepare"},
                build_container(),
                initContainers=[_PLAIN_INIT],
            ),
            "ends before the others start",
            id="plain init container",
        ),
        pytest.param(
            build_pod(
                None, build_container(), initContainers=[build_container("prepare", {SLICES: "5"})]
            ),
            "ends before the others start",
            id="slices on a plain init container",
        ),
        pytest.param(
            build_pod(
                HALF, build_container(), initContainers=[build_container("prepare", {SLICES: "50"})]
            ),
            "ends before the others start",
            id="slices on a plain init container beside a share",
        ),
        pytest.param(
            build_pod(
                None, build_container("a", {SLICES: "5"}), build_container("b", {SLICES: "5"})
            ),
            "several containers (a, b)",
            id="two containers ask",
        ),
        pytest.param(
            build_pod(HALF, build_container(limits={SLICES: "40"})),
            "something else than the annotation",
            id="slices beside another share",
        ),
        pytest.param(
            build_pod(
                {**HALF, "gpu-fraction-container-name": "b"},
                build_container("a", {SLICES: "50"}),
                build_container("b"),
            ),
            "something else than the annotation, which means 0 there",
            id="slices on another container",
        ),
        pytest.param(
            build_pod(None, build_container(limits={SLICES: "101"})),
            "gpu-fraction-num-devices",
            id="more slices than a GPU",
        ),
        pytest.param(
            build_pod(None, build_container(limits={SLICES: "0.5"})),
            "whole number",
            id="half a slice",
        ),
        pytest.param(
            build_pod(HALF, build_container(limits={"nvidia.com/gpu": "1"})),
            "either a share or whole GPUs",
            id="whole GPU",
        ),
        pytest.param(
            build_pod(HALF, build_container(limits={"nvidia.com/gpu": "0"})),
            "either a share or whole GPUs",
            id="no whole GPU",
        ),
        pytest.param(
            build_pod(
                HALF,
                build_container(),
                initContainers=[build_container("i", {"nvidia.com/gpu": "1"})],
            ),
            'spec.initContainers["i"]',
            id="whole GPU of an init container",
        ),
        pytest.param(
            build_pod(HALF, build_container(limits={"nvidia.com/mig-1g.10gb": "1"})),
            "nvidia.com/mig-1g.10gb",
            id="MIG",
        ),
        pytest.param(
            build_pod(None, build_container(limits={SLICES: "5", "nvidia.com/gpu": "1"})),
            "either a share or whole GPUs",
            id="whole GPU beside slices",
        ),
        *(
            pytest.param(
                build_pod(HALF, build_container(env=[(name, "x")])), f'env["{name}"]', id=name
            )
            for name in (
                "NVIDIA_VISIBLE_DEVICES",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                "CUDA_DEVICE_MEMORY_LIMIT",
            )
        ),
        pytest.param(
            build_pod({"nvidia.com/container.train.gpu-memory.request": "1Gi"}),
            'gpu-memory: "4Gi" with gpu-fraction-container-name: "train"',
            id="per container",
        ),
        pytest.param(
            build_pod({**HALF, "gpuslice.dev/placement": "tight"}), "pack or spread", id="placement"
        ),
    ],
)
def test_a_wrong_pod_is_refused_with_the_fix(pod: dict[str, Any], words: str) -> None:
    assert words in refused(pod)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 0.5",
        "0.5\n",
        "-1",
        "1e-1",
        "0x1p-1",
        "0_5",
        "NaN",
        "inf",
        "0,5",
        "\u0660.\u0665",
        "0",
        "0.001",
    ],
)
def test_a_bad_fraction_is_quoted_safely(text: str) -> None:
    message = refused(build_pod({"gpu-fraction": text}))
    assert message.startswith('metadata.annotations["gpu-fraction"]: "')
    assert message.isascii()
    assert message.isprintable()


def test_all_that_is_wrong_is_said_at_once() -> None:
    pod = build_pod(
        {"gpu-fraction": "2", "gpu-fraction-num-devices": "x"}, build_container(), nodeName="n"
    )
    result = mutate(pod, POLICY)
    assert isinstance(result, Denial)
    assert len(result.errors) == 3
    assert result.code == 422


def test_variables_of_other_containers_are_their_own_business() -> None:
    other = build_container("monitor", env=[("NVIDIA_VISIBLE_DEVICES", "all")])
    annotations = {**HALF, "gpu-fraction-container-name": "train"}
    admitted(build_pod(annotations, build_container(), other))


def test_a_zero_of_whole_gpus_is_fine_where_whole_gpus_are_ours() -> None:
    admitted(build_pod(HALF, build_container(limits={"nvidia.com/gpu": "0"})), WHOLE)
    assert "either" in refused(
        build_pod(HALF, build_container(limits={"nvidia.com/gpu": "1"})), WHOLE
    )


def test_whole_gpus_of_two_containers_are_refused_until_shares_are_per_container() -> None:
    pod = build_pod(
        None,
        build_container("a", {"nvidia.com/gpu": "1"}),
        build_container("b", {"nvidia.com/gpu": "1"}),
    )
    assert "several containers (a, b)" in refused(pod, WHOLE)
    assert mutate(pod, POLICY) == Mutation()


def test_slices_by_hand_are_held_to_the_smallest_share() -> None:
    tiny = SliceRule(slice_by=SliceBy.MEMORY, slice_memory_mib=100)
    message = refused(
        build_pod(None, build_container(limits={SLICES: "1"})),
        dataclasses.replace(POLICY, rule=tiny),
    )
    assert '["nvidia.com/gpu-slice"]: "1" means 100, which is below the smallest share' in message


def test_a_mig_instance_beside_a_whole_gpu_that_is_ours_is_refused() -> None:
    pod = build_pod(
        None, build_container(limits={"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "1"})
    )
    assert "remove nvidia.com/mig-1g.10gb" in refused(pod, WHOLE)
    assert mutate(pod, POLICY) == Mutation()


@pytest.mark.parametrize("name", ["CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER"])
def test_variables_that_choose_no_gpu_are_the_frameworks_own(name: str) -> None:
    admitted(build_pod(HALF, build_container(env=[(name, "1")])))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("gpu-fracton", "gpu-fraction"),
        ("gpu_memory", "gpu-memory"),
        ("nvidia.com/gpu-fraction", "gpu-fraction"),
        ("nvidia.com/gpu.memory", "gpu-memory"),
        ("GPU-Fraction", "gpu-fraction"),
        ("gpu-fraction-num-device", "gpu-fraction-num-devices"),
        ("gpuslice.dev/placements", "gpuslice.dev/placement"),
    ],
)
def test_a_key_that_looks_like_ours_gets_a_warning_with_the_right_name(
    key: str, meant: str
) -> None:
    result = mutate(build_pod({key: "0.5"}), POLICY)
    assert isinstance(result, Mutation)
    assert result.operations == ()
    assert f"did you mean {meant}?" in result.warnings[0]


@pytest.mark.parametrize(
    "key", ["cni.projectcalico.org/podIP", "example.com/gpu-model", "fraction"]
)
def test_other_keys_are_none_of_our_business(key: str) -> None:
    assert mutate(build_pod({key: "x"}), POLICY) == Mutation()


def test_a_container_name_without_a_share_gets_a_warning() -> None:
    result = mutate(build_pod({"gpu-fraction-container-name": "x"}), POLICY)
    assert isinstance(result, Mutation)
    assert "does nothing" in result.warnings[0]
