# SPDX-License-Identifier: Apache-2.0
"""Reviews answered: pods by operation, templates by kind, and binds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpuslice.contract.names import NodeName, PodUid
from tests.unit.webhook.podmaking import POLICY, SLICES, build_container, build_pod
from webhook import admission, bindings
from webhook.arbiter import Binding, Verdict
from webhook.arbitration import Deny
from webhook.podshape import ShapeError
from webhook.reviews import Review, ReviewError

HALF = {"gpu-fraction": "0.5"}
WRONG = {"gpu-fraction": "1.5"}


def build_review(content: Any, kind: str = "Pod", **fields: Any) -> Review:
    about: dict[str, Any] = {
        "api_version": "admission.k8s.io/v1",
        "uid": "u",
        "operation": "CREATE",
        "kind": kind,
        "resource": "pods",
        "sub_resource": "",
        "namespace": "default",
        "name": "",
        "content": content,
        "dry_run": False,
        **fields,
    }
    return Review(**about)


# --- pods


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"operation": "UPDATE"}, id="update"),
        pytest.param({"operation": "DELETE", "content": None}, id="deletion"),
        pytest.param({"sub_resource": "resize"}, id="resize"),
        pytest.param({"sub_resource": "ephemeralcontainers"}, id="ephemeral containers"),
        pytest.param({"sub_resource": "status"}, id="status"),
    ],
)
def test_only_a_pods_creation_is_decided_about(fields: dict[str, Any]) -> None:
    review = build_review(**{"content": build_pod(WRONG), **fields})
    answer = admission.admit_pod(review, POLICY)
    assert answer.allowed
    assert answer.operations == ()


def test_a_dry_run_is_answered_like_any_other() -> None:
    pod = build_pod(HALF)
    wet = admission.admit_pod(build_review(pod), POLICY)
    assert wet == admission.admit_pod(build_review(pod, dry_run=True), POLICY)
    assert wet.operations


def test_the_warnings_entry_never_denies_and_never_patches() -> None:
    for asked in (HALF, WRONG, {"gpu-fracton": "0.5"}):
        answer = admission.warn_pod(build_review(build_pod(asked)), POLICY)
        assert answer.allowed
        assert answer.operations == ()
    assert "did you mean" in answer.warnings[0]


def test_another_kind_is_a_wrong_request() -> None:
    with pytest.raises(ReviewError):
        admission.admit_pod(build_review({}, kind="Secret"), POLICY)
    with pytest.raises(ReviewError):
        admission.warn_template(build_review({}, kind="Pod"), POLICY)


# --- templates


def owner(kind: str, template: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"template": template}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    return {"metadata": {"name": "x"}, "spec": spec}


def template_of(pod: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"annotations": pod["metadata"].get("annotations")}, "spec": pod["spec"]}


@pytest.mark.parametrize("kind", admission.TEMPLATE_KINDS)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_templates_author_hears_what_its_pods_would_meet(kind: str, operation: str) -> None:
    pod = build_pod(WRONG, build_container(limits={"nvidia.com/gpu": "1"}))
    content = owner(kind, template_of(pod))
    answer = admission.warn_template(build_review(content, kind, operation=operation), POLICY)
    assert answer.allowed
    assert answer.operations == ()
    assert "its pods will be refused" in answer.warnings[0]
    assert "template" in answer.warnings[0]


def test_template_warnings_can_be_switched_off() -> None:
    quiet = dataclasses.replace(POLICY, template_warnings=False)
    content = owner("Deployment", template_of(build_pod(WRONG)))
    assert admission.warn_template(build_review(content, "Deployment"), quiet).warnings == ()


def test_a_good_template_earns_no_warning() -> None:
    content = owner("Deployment", template_of(build_pod(HALF)))
    assert admission.warn_template(build_review(content, "Deployment"), POLICY).warnings == ()


def test_an_annotation_on_the_deployment_itself_is_on_the_wrong_level() -> None:
    content = owner("Deployment", template_of(build_pod()))
    content["metadata"]["annotations"] = HALF
    (warning,) = admission.warn_template(build_review(content, "Deployment"), POLICY).warnings
    assert "spec.template.metadata.annotations" in warning
    content["spec"]["template"]["metadata"]["annotations"] = HALF
    assert admission.warn_template(build_review(content, "Deployment"), POLICY).warnings == ()


@pytest.mark.parametrize("content", [{}, {"spec": None}, {"spec": {"template": None}}])
def test_an_owner_without_a_template_is_left_alone(content: dict[str, Any]) -> None:
    assert admission.warn_template(build_review(content, "Job"), POLICY).warnings == ()


def test_a_template_of_a_wrong_shape_is_a_wrong_request() -> None:
    with pytest.raises(ShapeError):
        admission.warn_template(build_review({"spec": {"template": []}}, "Job"), POLICY)


# --- binds

TARGET = {"apiVersion": "v1", "kind": "Node", "name": "node-a"}


def binding(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "uid": "u-1"}, "target": TARGET, **fields}


def granted(_binding: Binding) -> Verdict:
    return Verdict(outcome="granted", annotations={"gpuslice.dev/gpu": "GPU-1"})


@pytest.mark.parametrize("annotations", [None, {}, {"x": "y"}], ids=["null", "empty", "others"])
def test_a_grant_is_written_into_the_bindings_annotations(annotations: Any) -> None:
    content = binding()
    content["metadata"]["annotations"] = annotations
    answer = bindings.answer(build_review(content, "Binding"), granted)
    last = answer.operations[-1]
    assert (last["path"], last["value"]) == (
        "/metadata/annotations/gpuslice.dev~1gpu",
        "GPU-1",
    )
    assert len(answer.operations) == (2 if annotations is None else 1)


@pytest.mark.parametrize(("given", "written"), [(None, ["u-1"]), ("u-1", [])])
def test_a_bind_without_a_uid_holds_for_the_pod_that_was_looked_at(
    given: str | None, written: list[str]
) -> None:
    """Another pod may have been made under that name meanwhile."""
    content = binding(metadata={"name": "p"} if given is None else {"name": "p", "uid": given})

    def bind(_binding: Binding) -> Verdict:
        return Verdict(outcome="granted", pod_uid=PodUid("u-1"))

    answer = bindings.answer(build_review(content, "Binding"), bind)
    uids = [each["value"] for each in answer.operations if each["path"] == "/metadata/uid"]
    assert uids == written


def test_a_bind_is_asked_for_by_the_requests_own_namespace_and_name() -> None:
    asked: list[Binding] = []

    def bind(it: Binding) -> Verdict:
        asked.append(it)
        return Verdict(outcome="passed")

    content = binding(metadata={"name": "lie", "namespace": "lie", "uid": "u-1"})
    review = build_review(content, "Binding", name="p", namespace="ns", dry_run=True)
    assert bindings.answer(review, bind).operations == ()
    assert asked == [
        Binding(
            namespace="ns",
            name="p",
            uid=PodUid("u-1"),
            node=NodeName("node-a"),
            dry_run=True,
        )
    ]


def test_a_denial_keeps_its_code_and_words() -> None:
    denial = Deny(reason="no-room", message="no single GPU")
    answer = bindings.answer(
        build_review(binding(), "Binding"), lambda _it: Verdict(denial=denial, outcome="denied")
    )
    assert (answer.allowed, answer.code, answer.message) == (False, 409, "no single GPU")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(binding(target={"kind": "Pod", "name": "x"}), id="to no node"),
        pytest.param(binding(target={}), id="to nothing"),
        pytest.param(binding(target=None), id="to null"),
    ],
)
def test_a_bind_to_what_is_no_node_is_the_api_servers_business(content: dict[str, Any]) -> None:
    def never(_binding: Binding) -> Verdict:
        raise AssertionError

    assert bindings.answer(build_review(content, "Binding"), never).allowed


def test_slices_without_admission_are_seen_in_the_pod() -> None:
    from webhook import sharingpods

    pod = build_pod(None, build_container(limits={SLICES: "5"}))
    found = sharingpods.read(pod, SLICES)
    assert found.ask is None
    assert found.asks_slices
