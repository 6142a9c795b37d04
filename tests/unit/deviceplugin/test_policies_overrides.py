# SPDX-License-Identifier: Apache-2.0
"""What holds for a GPU where the settings differ by node, label, UUID, index or model."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from deviceplugin import policies
from deviceplugin.inventory import Gpu, Inventory
from deviceplugin.policies import Override, Policies, Policy
from gpuslice.contract.names import GpuUuid

L4 = Gpu(uuid=GpuUuid("GPU-0"), index=0, product="NVIDIA L4", memory_mib=23034)
A100 = Gpu(uuid=GpuUuid("GPU-1"), index=1, product="NVIDIA A100", memory_mib=40000)
PART = Gpu(
    uuid=GpuUuid("MIG-1"),
    index=1,
    product="NVIDIA A100 MIG 1g.5gb",
    memory_mib=4864,
    mig_parent=GpuUuid("GPU-1"),
)
BASE = Policy(ignored_xids=frozenset({31}), recovery_seconds=15)


def modes(override: Override, labels: Mapping[str, str] | None = None) -> list[str]:
    found = Policies(base=BASE, overrides=(override,))
    return [found.of(gpu, node="a", labels=labels or {}).mode for gpu in (L4, A100, PART)]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        pytest.param(Override(mode="mps"), "mmm", id="no condition"),
        pytest.param(Override(mode="mps", nodes=frozenset("ab")), "mmm", id="this node"),
        pytest.param(Override(mode="mps", nodes=frozenset("b")), "ttt", id="another node"),
        pytest.param(Override(mode="mps", node_labels={"pool": "x"}), "mmm", id="label"),
        pytest.param(Override(mode="mps", node_labels={"pool": "y"}), "ttt", id="other value"),
        pytest.param(
            Override(mode="mps", node_labels={"pool": "x", "more": ""}), "ttt", id="label missing"
        ),
        pytest.param(Override(mode="mps", uuids=frozenset({"GPU-0"})), "mtt", id="UUID"),
        pytest.param(Override(mode="mps", uuids=frozenset({"GPU-1"})), "tmm", id="MIG parent"),
        pytest.param(Override(mode="mps", indexes=frozenset({0})), "mtt", id="index"),
        pytest.param(Override(mode="mps", models=frozenset({"NVIDIA L4"})), "mtt", id="model"),
        pytest.param(
            Override(mode="mps", models=frozenset({"NVIDIA L4"}), indexes=frozenset({1})),
            "ttt",
            id="all must be so",
        ),
    ],
)
def test_an_override_holds_where_all_that_it_names_is_so(override: Override, expected: str) -> None:
    assert "".join(mode[0] for mode in modes(override, {"pool": "x"})) == expected


def test_a_later_override_wins_and_says_nothing_of_what_it_does_not_name() -> None:
    found = Policies(
        base=BASE,
        overrides=(
            Override(mode="mps", injection="cdi"),
            Override(indexes=frozenset({0}), mode="time-slicing", ignored_xids=frozenset()),
        ),
    ).of_all(Inventory(gpus=(L4, A100)), node="a", labels={})
    assert found["GPU-0"] == Policy(injection="cdi", recovery_seconds=15)
    assert found["GPU-1"] == Policy(
        mode="mps", injection="cdi", ignored_xids=frozenset({31}), recovery_seconds=15
    )
    assert policies.mode_of(found.values(), otherwise="mps") == "mixed"
    assert policies.mode_of((), otherwise="mps") == "mps"
    assert policies.mode_of([Policy(), Policy()], otherwise="mps") == "time-slicing"
