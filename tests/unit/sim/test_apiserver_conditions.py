# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from gpuslice.sim.apiserver import conditions

SLICES = "nvidia.com/gpu-slice"
ANNOTATED = (
    "has(object.metadata.annotations) && ('gpu-fraction' in object.metadata.annotations "
    "|| 'gpu-memory' in object.metadata.annotations)"
)
ASKING = (
    f"object.spec.containers.exists(c, has(c.resources.limits) && '{SLICES}' in c.resources.limits)"
)


def pod(annotations: dict[str, str] | None = None, *limits: dict[str, str] | None) -> Any:
    meta: dict[str, Any] = {"name": "p"}
    if annotations is not None:
        meta["annotations"] = annotations
    resources = [{} if one is None else {"limits": one} for one in limits]
    return {"metadata": meta, "spec": {"containers": [{"resources": one} for one in resources]}}


@pytest.mark.parametrize(
    ("expression", "item", "expected"),
    [
        pytest.param(ANNOTATED, pod({"gpu-fraction": "0.5"}), True, id="annotated"),
        pytest.param(ANNOTATED, pod({"other": "x"}), False, id="otherwise annotated"),
        pytest.param(ANNOTATED, pod(), False, id="no annotations"),
        pytest.param(ASKING, pod(None, None, {SLICES: "5"}), True, id="second container asks"),
        pytest.param(ASKING, pod(None, {"cpu": "1"}), False, id="none asks"),
        pytest.param(ASKING, pod(), False, id="no containers"),
        pytest.param("has(object.metadata.labels)", pod(), False, id="has of an absent key"),
        pytest.param("oldObject == null", pod(), True, id="no old object"),
        pytest.param("object.spec.none.a == 1 || true", pod(), True, id="an error or true"),
        pytest.param("object.spec.none.a == 1 && false", pod(), False, id="an error and false"),
        pytest.param(
            "object.metadata.?annotations[?'gpu-fraction'].orValue('') == '0.5'",
            pod({"gpu-fraction": "0.5"}),
            True,
            id="optional",
        ),
        pytest.param("!('x' in ['a', 'b'])", pod(), True, id="in a list"),
        pytest.param("object.metadata.name.startsWith('p')", pod(), True, id="text functions"),
    ],
)
def test_an_expression_means_what_it_means_in_kubernetes(
    expression: str, item: Any, *, expected: bool
) -> None:
    assert conditions.holds(expression, {"object": item}) is expected


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param("'a' in object.metadata.annotations", id="in an absent map"),
        pytest.param("has(object.none.annotations)", id="has below an absent key"),
        pytest.param("has(oldObject.metadata)", id="has of null"),
        pytest.param("object.metadata.name", id="no boolean"),
        pytest.param("object.", id="no expression"),
        pytest.param("nobody == 1", id="unknown variable"),
        pytest.param("1 + 'a' == 2", id="types"),
    ],
)
def test_an_expression_without_a_value_is_an_error(expression: str) -> None:
    with pytest.raises(conditions.ConditionError):
        conditions.holds(expression, {"object": pod()})


def test_one_false_condition_decides_whatever_the_others_are() -> None:
    error = {"name": "a", "expression": "object.none.a"}
    false = {"name": "b", "expression": "false"}
    true = {"name": "c", "expression": "true"}
    assert conditions.all_hold([true, true], {"object": pod()}) is True
    assert conditions.all_hold([], {"object": pod()}) is True
    assert conditions.all_hold([error, false], {"object": pod()}) is False
    with pytest.raises(conditions.ConditionError, match="a: "):
        conditions.all_hold([true, error], {"object": pod()})
