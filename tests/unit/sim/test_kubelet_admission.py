# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from gpuslice.sim.kubelet import admission

SLICE = "nvidia.com/gpu-slice"
FIT = "gpuslice.dev/fit-0.5"


def pod(name: str = "one", *, init: list[dict[str, Any]] | None = None, **amounts: str) -> Any:
    requests = {key.replace("__", "/").replace("_", "-"): text for key, text in amounts.items()}
    return {
        "metadata": {"name": name, "uid": name},
        "spec": {
            "initContainers": init or [],
            "containers": [{"name": "main", "resources": {"requests": requests}}],
        },
    }


def asking(resource: str, count: int, name: str = "one") -> Any:
    amounts = {resource: str(count)}
    container = {"name": "main", "resources": {"limits": amounts, "requests": amounts}}
    return {"metadata": {"name": name, "uid": name}, "spec": {"containers": [container]}}


def node(labels: dict[str, str] | None = None, **allocatable: str) -> Any:
    amounts = {"cpu": "2", "memory": "1Gi", "pods": "3"} | allocatable
    return {
        "metadata": {"name": "node-a", "labels": labels or {}},
        "status": {"allocatable": amounts},
    }


def verdict(asked: Any, place: Any, *others: Any, **more: Any) -> tuple[str, str] | None:
    given: dict[str, Any] = {"in_use": {}, "holds_any": False} | more
    rejection = admission.check(asked, node=place, others=others, **given)
    return None if rejection is None else (rejection.reason, rejection.message)


def test_a_pod_with_room_is_admitted() -> None:
    place = node(**{FIT: "2"})
    assert verdict(asking(FIT, 1), place, asking(FIT, 1, "two")) is None


def test_an_extended_resource_that_is_short_names_all_numbers() -> None:
    place = node(**{SLICE: "20"})
    assert verdict(asking(SLICE, 6), place, asking(SLICE, 16, "two")) == (
        "OutOfnvidia.com/gpu-slice",
        (
            "Node didn't have enough resource: nvidia.com/gpu-slice, "
            "requested: 6, used: 16, capacity: 20"
        ),
    )


def test_a_resource_that_the_node_does_not_name_is_not_checked() -> None:
    assert verdict(asking(FIT, 1), node()) is None


def test_a_resource_of_zero_is_checked() -> None:
    found = verdict(asking(FIT, 1), node(**{FIT: "0"}))
    assert found is not None
    assert found[0] == f"OutOf{FIT}"


def test_devices_in_use_lift_a_node_status_that_lags_for_a_pod_that_holds_some() -> None:
    place = node(**{SLICE: "0"})
    assert verdict(asking(SLICE, 6), place, in_use={SLICE: 6}, holds_any=True) is None
    found = verdict(asking(SLICE, 6), place, in_use={SLICE: 6}, holds_any=False)
    assert found is not None


def test_processor_time_is_told_in_thousandths() -> None:
    assert verdict(pod(cpu="1500m"), node(), pod("two", cpu="1")) == (
        "OutOfcpu",
        "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000",
    )


def test_the_number_of_pods_comes_first() -> None:
    others = [pod(str(number)) for number in range(3)]
    found = verdict(pod(cpu="100"), node(), *others)
    assert found is not None
    assert found[0] == "OutOfpods"


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        pytest.param([], 2, id="app alone"),
        pytest.param([("init", 1, None)], 2, id="a small init container hides"),
        pytest.param([("init", 5, None)], 5, id="a large init container counts"),
        pytest.param([("side", 1, "Always")], 3, id="a sidecar adds"),
        pytest.param([("side", 1, "Always"), ("init", 5, None)], 6, id="init beside a sidecar"),
        pytest.param([("init", 5, None), ("side", 1, "Always")], 5, id="init before a sidecar"),
    ],
)
def test_a_pods_requests_are_its_sum_or_the_peak_of_its_start(
    init: list[tuple[str, int, str | None]], expected: int
) -> None:
    containers = [
        {"name": name, "restartPolicy": policy, "resources": {"requests": {SLICE: str(count)}}}
        for name, count, policy in init
    ]
    asked = asking(SLICE, 2)
    asked["spec"]["initContainers"] = containers
    assert admission.requests_of(asked)[SLICE] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100m", Fraction(1, 10)),
        ("2", Fraction(2)),
        ("1Gi", Fraction(2**30)),
        ("what", Fraction(0)),
    ],
)
def test_quantities_are_exact(text: str, expected: Fraction) -> None:
    assert admission.amount(text) == expected


def required(*terms: dict[str, Any]) -> Any:
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
    return {"spec": {"affinity": {"nodeAffinity": affinity}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": [*values]}]}


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        pytest.param({"spec": {"nodeSelector": {"zone": "a"}}}, True, id="selector"),
        pytest.param({"spec": {"nodeSelector": {"zone": "b"}}}, False, id="other selector"),
        pytest.param({"spec": {"nodeSelector": {"none": ""}}}, False, id="missing label"),
        pytest.param(required(expression("zone", "In", "b", "a")), True, id="In"),
        pytest.param(required(expression("zone", "NotIn", "a")), False, id="NotIn"),
        pytest.param(required(expression("none", "NotIn", "a")), True, id="NotIn without label"),
        pytest.param(required(expression("zone", "Exists")), True, id="Exists"),
        pytest.param(required(expression("zone", "DoesNotExist")), False, id="DoesNotExist"),
        pytest.param(required(expression("room", "Gt", "39")), True, id="Gt"),
        pytest.param(required(expression("room", "Gt", "40")), False, id="Gt equal"),
        pytest.param(required(expression("room", "Lt", "41")), True, id="Lt"),
        pytest.param(required(expression("zone", "Gt", "1")), False, id="Gt of a word"),
        pytest.param(required(expression("zone", "Like", "a")), False, id="unknown operator"),
        pytest.param(
            required(expression("zone", "In", "b"), expression("room", "Exists")),
            True,
            id="one term of several",
        ),
        pytest.param(required({}), False, id="an empty term"),
        pytest.param(required(), False, id="no term"),
        pytest.param(
            required(
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
            ),
            True,
            id="the node's name",
        ),
        pytest.param({"spec": {"affinity": {"nodeAffinity": {}}}}, True, id="preferences only"),
    ],
)
def test_node_selector_and_required_affinity(asked: Any, *, fits: bool) -> None:
    place = node({"zone": "a", "room": "40"})
    assert admission.matches_node(asked, place) is fits


def test_a_node_that_does_not_match_is_refused_in_kubelets_words() -> None:
    asked = pod() | {"spec": {"nodeSelector": {"zone": "b"}, "containers": []}}
    assert verdict(asked, node()) == (
        "NodeAffinity",
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
    )
