# SPDX-License-Identifier: Apache-2.0
"""The user's annotations: what is taken, and what a refusal says."""

from __future__ import annotations

import pytest

from gpuslice.contract.annotations import Bounds, RequestError, read_request
from gpuslice.contract.placement import Policy

BOUNDS = Bounds(largest_gpu_mib=23034, most_gpus=8)


@pytest.mark.parametrize(
    ("annotations", "share"),
    [
        ({"gpu-fraction": "0.5"}, "0.5"),
        ({"gpu-fraction": ".5"}, "0.5"),
        ({"gpu-fraction": "+0.5"}, "0.5"),
        ({"gpu-fraction": "0.50"}, "0.5"),
        ({"gpu-fraction": "50%"}, "0.5"),
        ({"gpu-fraction": "12.5%"}, "0.125"),
        ({"gpu-fraction": "1"}, "1"),
        ({"gpu-memory": "4000"}, "4000mi"),
        ({"gpu-memory": "4Gi"}, "4096mi"),
        ({"gpu-memory": "4000Mi"}, "4000mi"),
        ({"gpu-memory": "4G"}, "3815mi"),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}, "2x0.5"),
        ({"gpu-fraction": "1", "gpu-fraction-num-devices": "2"}, "2x1"),
        ({"gpuslice.dev/gpu-fraction": "0.5"}, "0.5"),
        ({"gpuslice.dev/gpu-fraction": "0.5", "gpu-fraction": "0.5"}, "0.5"),
        ({"gpu-fraction": "0.5", "mps": "true"}, "0.5"),
    ],
)
def test_a_share_is_read(annotations: dict[str, str], share: str) -> None:
    request = read_request(annotations, BOUNDS)
    assert request is not None
    assert str(request.share) == share


@pytest.mark.parametrize(
    "annotations", [{}, {"team": "vision"}, {"gpuslice.dev/placement": "spread"}, {"mps": "false"}]
)
def test_a_pod_without_a_share_asks_for_nothing(annotations: dict[str, str]) -> None:
    if "mps" in annotations:
        with pytest.raises(RequestError, match="stands without a share"):
            read_request(annotations, BOUNDS)
    else:
        assert read_request(annotations, BOUNDS) is None


def test_the_container_and_the_placement_are_read() -> None:
    request = read_request(
        {
            "gpu-fraction": "0.5",
            "gpu-fraction-container-name": "train",
            "gpuslice.dev/placement": "spread",
        },
        BOUNDS,
    )
    assert request is not None
    assert (request.container_name, request.placement) == ("train", Policy.SPREAD)


BAD_FRACTIONS = ["", " 0.5", "-0.5", "1e-1", "0x1p-1", "0_5", "NaN", "inf", "0,5", "\uff10.5", "0"]
BAD_FRACTIONS += ["0.001", "1.5", "150%", "0%", "9" * 41, "half", "50 %"]
BAD_MEMORIES = ["", "0", "-1", "+", "1.2", "16Ti", "23035", "17179869184", "127", "4000Mib", "abc"]
BAD_DEVICES = ["", "0", "-1", "1.2", "9", "1000000", "two", "\u0662"]


@pytest.mark.parametrize(
    ("key", "text"),
    [("gpu-fraction", text) for text in BAD_FRACTIONS]
    + [("gpu-memory", text) for text in BAD_MEMORIES]
    + [("gpu-fraction-num-devices", text) for text in BAD_DEVICES]
    + [("gpu-fraction-container-name", text) for text in ["", "a,b", " a"]]
    + [("gpuslice.dev/placement", text) for text in ["", "PACK", "binpack"]]
    + [("mps", text) for text in ["", "yes", "True"]],
)
def test_a_bad_value_is_refused_with_field_value_allowed_and_example(key: str, text: str) -> None:
    share = {} if key in ("gpu-fraction", "gpu-memory") else {"gpu-fraction": "0.5"}
    with pytest.raises(RequestError) as caught:
        read_request({**share, key: text}, BOUNDS)
    (error,) = caught.value.errors
    assert (error.field, error.value) == (f'metadata.annotations["{key}"]', text)
    assert error.problem
    assert error.allowed
    assert f"{key}:" in error.example
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"gpu-fraction": "0.5", "gpu-memory": "4000"}, "stands beside gpu-fraction"),
        ({"gpu-fraction-num-devices": "2"}, "stands without a share"),
        ({"mps": "true"}, "stands without a share"),
        ({"gpu-fraction": "0.5", "gpuslice.dev/gpu-fraction": "0.25"}, "differs from gpu-fraction"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(
    annotations: dict[str, str], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        read_request(annotations, BOUNDS)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        read_request({"gpu-fraction": "2", "gpu-fraction-num-devices": "0", "mps": "on"}, BOUNDS)
    assert len(caught.value.errors) == 3


def test_an_ugly_value_is_shown_escaped_and_cut() -> None:
    with pytest.raises(RequestError) as caught:
        read_request({"gpu-fraction": '"\n' + "x" * 300}, BOUNDS)
    message = str(caught.value)
    assert r"\"\nxxx" in message
    assert len(message) < 400
