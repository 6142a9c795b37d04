# SPDX-License-Identifier: Apache-2.0
"""The container learns of its share in KAI's words and in ours."""

from __future__ import annotations

import pytest

from deviceplugin import environment
from deviceplugin.allocation import Grant
from gpuslice.contract.shares import parse_share
from tests.unit.deviceplugin.claims import claim, gpu


@pytest.mark.parametrize(
    ("share", "memories_mib", "portion"),
    [
        pytest.param("0.5", [23034], "0.50", id="two decimals"),
        pytest.param("1", [23034], "1.00", id="whole"),
        pytest.param("0.125", [23034], "0.12", id="a tie falls as in C"),
        pytest.param("0.333", [23034], "0.33", id="rounded"),
        pytest.param("2x0.5", [23034, 15000], "0.50", id="per device"),
        pytest.param("4000mi", [23034], "0.18", id="memory is rounded up"),
        pytest.param("4000mi", [40000], "0.10", id="memory that divides"),
        pytest.param("23034mi", [23034], "1.00", id="all of the memory"),
        pytest.param("100mi", [81920], "0.01", id="never zero"),
        pytest.param("2x4000mi", [23034, 8000], "0.50", id="the smallest GPU's portion"),
    ],
)
def test_the_portion_is_written_as_kai_writes_it(
    share: str, memories_mib: list[int], portion: str
) -> None:
    gpus = [gpu(index, memory_mib=each) for index, each in enumerate(memories_mib)]
    assert environment.portion_text(parse_share(share), gpus) == portion


def test_several_gpus_are_listed_in_the_claim_s_order() -> None:
    gpus = (gpu(1, memory_mib=15000), gpu(0))
    made = claim("a", "2x0.5", 50, *gpus)
    grant = Grant(tokens=frozenset(), share=made.share, shape=made.shape, claimed=True)
    said = environment.environment(grant, gpus)
    assert said == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-0",
        "RUNAI_NUM_OF_GPUS": "0.50",
        "GPU_PORTION": "0.50",
        "GPUSLICE_SHARE": "2x0.5",
        "GPUSLICE_GPU": "GPU-1,GPU-0",
        "GPUSLICE_MEMORY_LIMIT_MIB": "7500,11517",
        "GPUSLICE_SLICES": "100",
    }


def test_hints_never_promise_more_than_the_share() -> None:
    gpus = (gpu(0),)
    made = claim("a", "0.999", 99, *gpus)
    grant = Grant(tokens=frozenset(), share=made.share, shape=made.shape, claimed=True)
    assert environment.hints(grant, gpus, ("jax", "tensorflow")) == {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.99",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    assert environment.hints(grant, gpus, ()) == {}
