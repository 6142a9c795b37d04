# SPDX-License-Identifier: Apache-2.0
"""What the API server sends the webhook: all that it must see, and nothing that doesn't need it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.contract import names
from gpuslice.sim.apiserver import conditions
from tests.unit.webhook.podmaking import POLICY, SLICES, build_container, build_pod
from tests.unit.webhook.test_mutation_kai import CASES, pod_of
from webhook.admission import TEMPLATE_KINDS
from webhook.mutation import Mutation, mutate

ROOT = Path(__file__).parents[2]
MUTATING, VALIDATING = yaml.safe_load_all(
    (ROOT / "deploy" / "webhook-configuration.yaml").read_text(encoding="utf-8")
)
ENTRIES = {each["name"].partition(".")[0]: each for each in MUTATING["webhooks"]} | {
    each["name"].partition(".")[0]: each for each in VALIDATING["webhooks"]
}


def is_sent(entry: str, thing: dict[str, Any]) -> bool:
    return conditions.all_hold(ENTRIES[entry].get("matchConditions", []), {"object": thing})


HALF = {"gpu-fraction": "0.5"}
ORDINARY = [
    pytest.param(build_pod(), id="plain"),
    pytest.param(build_pod({"a": "b"}, labels={"c": "d"}), id="with others' annotations"),
    pytest.param(build_pod(None, build_container(limits={"nvidia.com/gpu": "1"})), id="whole GPU"),
    pytest.param(build_pod(None, initContainers=[build_container("i")]), id="init container"),
    pytest.param(build_pod(HALF, schedulerName="volcano"), id="another scheduler's"),
]
OURS = [
    pytest.param(build_pod({key: "x"}), id=key)
    for plain in (names.FRACTION, names.MEMORY, names.DEVICES)
    for key in (plain, names.prefixed(plain))
] + [
    pytest.param(build_pod({names.MPS: "true"}), id="mps"),
    *(pytest.param(build_pod({key: "x"}), id=key) for key in names.ARBITER_ANNOTATIONS),
    pytest.param(build_pod(None, labels={names.SHARE_LABEL: "0.5"}), id="label"),
    pytest.param(build_pod(None, build_container(limits={SLICES: "5"})), id="slices"),
    pytest.param(
        build_pod(
            None, {"name": "c", "resources": {"requests": {SLICES: "5"}}}, build_container("d")
        ),
        id="slices in requests",
    ),
    pytest.param(
        build_pod(None, initContainers=[build_container("i", {SLICES: "5"})]), id="init slices"
    ),
    pytest.param(
        build_pod(None, build_container(limits={f"{names.FIT_PREFIX}0.5": "1"})), id="a fit"
    ),
    pytest.param(build_pod(HALF, schedulerName="default-scheduler"), id="default scheduler"),
    pytest.param(build_pod(HALF, schedulerName="kai-scheduler"), id="KAI's"),
]


@pytest.mark.parametrize("pod", ORDINARY)
def test_an_ordinary_pod_never_depends_on_us(pod: dict[str, Any]) -> None:
    assert not is_sent("pods", pod)


@pytest.mark.parametrize("pod", OURS)
def test_whatever_admission_changes_or_refuses_is_sent(pod: dict[str, Any]) -> None:
    assert is_sent("pods", pod)


@pytest.mark.parametrize(
    "case", [*CASES["requests"], *CASES["per_container"]], ids=lambda case: case["id"]
)
def test_what_meets_nobody_is_what_admission_leaves_alone(case: dict[str, Any]) -> None:
    pod = pod_of(case)
    if not is_sent("pods", pod):
        result = mutate(pod, POLICY)
        assert isinstance(result, Mutation)
        assert result.operations == ()
        assert bool(result.warnings) <= is_sent("warnings", pod)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (build_pod({"gpu-fracton": "0.5"}), True),
        (build_pod({"GPU_MEMORY": "4000"}), True),
        (build_pod({"gpu-fraction-container-name": "x"}), True),
        (build_pod({"gpuslice.dev/placements": "pack"}), True),
        (build_pod({"gpu-fraction": "0.5"}, schedulerName="volcano"), True),
        (build_pod({"gpu-fraction": "0.5"}), False),
        (build_pod({"a": "b"}), False),
        (build_pod(), False),
    ],
)
def test_only_what_may_earn_a_warning_is_sent_for_one(
    pod: dict[str, Any], *, expected: bool
) -> None:
    assert is_sent("warnings", pod) == expected


def test_policies_and_timeouts_are_those_of_the_design() -> None:
    about = {
        name: (each["failurePolicy"], each["clientConfig"]["service"]["path"])
        for name, each in ENTRIES.items()
    }
    assert about == {
        "pods": ("Fail", "/admit/pods"),
        "bindings": ("Ignore", "/admit/bindings"),
        "warnings": ("Ignore", "/admit/pods/warnings"),
        "templates": ("Ignore", "/admit/templates"),
    }
    assert ENTRIES["bindings"]["timeoutSeconds"] == 3
    for entry in ENTRIES.values():
        assert entry["admissionReviewVersions"] == ["v1"]
        assert "caBundle" not in entry["clientConfig"]
        (exclusion,) = entry["namespaceSelector"]["matchExpressions"]
        assert {"kube-system", "gpuslice", "gpuslice-nodes"} <= set(exclusion["values"])


def test_templates_of_all_kinds_are_sent_and_those_of_controllers_are_not() -> None:
    resources = {each for rule in ENTRIES["templates"]["rules"] for each in rule["resources"]}
    assert resources == {f"{kind.lower()}s" for kind in TEMPLATE_KINDS}
    assert is_sent("templates", {"metadata": {"name": "x"}})
    assert not is_sent("templates", {"metadata": {"ownerReferences": [{"kind": "Deployment"}]}})
