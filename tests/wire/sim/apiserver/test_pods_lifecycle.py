# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from tests.wire.sim.apiserver.asking import PODS, Client, build_binding, build_pod

Json = dict[str, Any]
SLICES = "nvidia.com/gpu-slice"


def build_sharing(**resources: Any) -> Json:
    pod = build_pod()
    pod["spec"]["containers"][0]["resources"] = resources
    return pod


@pytest.fixture
def bound(client: Client) -> Client:
    client.post(PODS, build_pod())
    assert client.post(f"{PODS}/p/binding", build_binding()).code == 201
    return client


def test_a_new_pod_has_the_defaults(client: Client) -> None:
    pod = client.post(PODS, {**build_pod(), "status": {"phase": "Running"}}).body
    assert pod["status"] == {"phase": "Pending"}
    spec = pod["spec"]
    assert spec["terminationGracePeriodSeconds"] == 30
    assert (spec["restartPolicy"], spec["schedulerName"]) == ("Always", "default-scheduler")
    assert spec["containers"][0]["resources"] == {}


def test_limits_are_copied_to_requests(client: Client) -> None:
    limits = {SLICES: "5", "cpu": "1"}
    pod = client.post(PODS, build_sharing(limits=limits, requests={"cpu": "500m"})).body
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources == {"limits": limits, "requests": {"cpu": "500m", SLICES: "5"}}


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        pytest.param({"limits": {SLICES: "0.5"}}, "must be an integer", id="half a token"),
        pytest.param({"limits": {SLICES: "500m"}}, "must be an integer", id="thousandths"),
        pytest.param(
            {"limits": {SLICES: "5"}, "requests": {SLICES: "4"}}, "must be equal to", id="request"
        ),
        pytest.param({"requests": {SLICES: "4"}}, "Required value", id="no limit"),
        pytest.param({"limits": {SLICES: "many"}}, "not a quantity", id="no number"),
        pytest.param({"limits": {SLICES: "-1"}}, "greater than or equal to 0", id="below zero"),
        pytest.param({"limits": {"gpus": "1"}}, "standard resource", id="no domain"),
        pytest.param({"limits": {"example.com/": "1"}}, "qualified", id="no name"),
        pytest.param(
            {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}, "less than or equal", id="cpu"
        ),
    ],
)
def test_wrong_resources_are_refused(client: Client, resources: Json, said: str) -> None:
    answer = client.post(PODS, build_sharing(**resources))
    assert answer.why == (422, "Invalid")
    assert said in answer.body["message"]
    assert "spec.containers[0].resources" in answer.body["message"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": "text"}, id="spec"),
        pytest.param({"spec": {"containers": {"name": "a"}}}, id="containers"),
        pytest.param({"spec": {"containers": [None]}}, id="a null container"),
        pytest.param({"spec": {"containers": [{"name": 1}]}}, id="a name"),
        pytest.param({"spec": {"containers": [{"resources": []}]}}, id="resources"),
        pytest.param({"spec": {"containers": [{"resources": {"limits": "5"}}]}}, id="limits"),
        pytest.param({"spec": {"terminationGracePeriodSeconds": "5"}}, id="grace"),
        pytest.param({"metadata": "p"}, id="metadata"),
        pytest.param({"metadata": {"labels": ["a"]}}, id="labels"),
        pytest.param({"metadata": {"ownerReferences": {}}}, id="owners"),
        pytest.param({"metadata": {"ownerReferences": ["a"]}}, id="an owner"),
    ],
)
def test_what_no_typed_decoder_would_take_is_a_bad_request(client: Client, change: Json) -> None:
    assert client.post(PODS, {**build_pod(), **change}).why == (400, "BadRequest")
    assert client.names(PODS) == []


@pytest.mark.parametrize("value", ["2", "2k", "2e3", 2, "2000m"])
def test_whole_numbers_are_taken_however_they_are_written(client: Client, value: Any) -> None:
    assert client.post(PODS, build_sharing(limits={SLICES: value})).code == 201


def test_binding_sets_node_annotations_labels_and_condition_in_one_write(client: Client) -> None:
    made = client.post(PODS, build_pod(annotations={"mine": "kept"}))
    binding = build_binding(annotations={"gpuslice.dev/gpu": "GPU-1"}, labels={"zone": "a"})
    said = client.post(f"{PODS}/p/binding", binding)
    assert (said.code, said.body["status"]) == (201, "Success")
    pod = client.get(f"{PODS}/p")
    assert int(pod.version) == int(made.version) + 1
    assert pod.body["spec"]["nodeName"] == "node-a"
    assert pod.body["metadata"]["annotations"] == {"mine": "kept", "gpuslice.dev/gpu": "GPU-1"}
    assert pod.body["metadata"]["labels"] == {"zone": "a"}
    (condition,) = pod.body["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")


def test_the_older_bindings_endpoint_binds_too(client: Client) -> None:
    client.post(PODS, build_pod())
    said = client.post("/api/v1/namespaces/default/bindings", build_binding())
    assert said.code == 201
    assert client.get(f"{PODS}/p").body["spec"]["nodeName"] == "node-a"


def test_a_bound_pod_is_not_bound_again(bound: Client) -> None:
    said = bound.post(f"{PODS}/p/binding", build_binding(node="node-b"))
    assert said.why == (409, "Conflict")
    assert "already assigned to node" in said.body["message"]
    assert bound.get(f"{PODS}/p").body["spec"]["nodeName"] == "node-a"


@pytest.mark.parametrize(
    ("binding", "why"),
    [
        pytest.param(
            build_binding(uid="another"), (409, "Conflict"), id="another pod of this name"
        ),
        pytest.param(build_binding(node=""), (422, "Invalid"), id="no node"),
        pytest.param(build_binding(pod="q"), (400, "BadRequest"), id="another name"),
        pytest.param(build_pod(), (400, "BadRequest"), id="no Binding"),
    ],
)
def test_a_wrong_binding_is_refused(client: Client, binding: Json, why: tuple[int, str]) -> None:
    client.post(PODS, build_pod())
    assert client.post(f"{PODS}/p/binding", binding).why == why
    assert "nodeName" not in client.get(f"{PODS}/p").body["spec"]


def test_binding_a_missing_pod_is_not_found(client: Client) -> None:
    assert client.post(f"{PODS}/p/binding", build_binding()).why == (404, "NotFound")


def test_a_gated_pod_is_not_bound(client: Client) -> None:
    pod = build_pod()
    pod["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    client.post(PODS, pod)
    assert client.post(f"{PODS}/p/binding", build_binding()).why == (409, "Conflict")


def test_a_dry_run_binds_nothing(client: Client) -> None:
    client.post(PODS, build_pod())
    assert client.post(f"{PODS}/p/binding?dryRun=All", build_binding()).code == 201
    assert "nodeName" not in client.get(f"{PODS}/p").body["spec"]


def test_an_unbound_pod_is_deleted_at_once(client: Client) -> None:
    client.post(PODS, build_pod())
    assert client.delete(f"{PODS}/p").code == 200
    assert client.get(f"{PODS}/p").code == 404


def test_a_bound_pod_is_deleted_by_its_kubelet(bound: Client) -> None:
    said = bound.delete(f"{PODS}/p")
    meta = said.body["metadata"]
    assert meta["deletionTimestamp"] == "2026-05-01T12:00:30Z"
    assert meta["deletionGracePeriodSeconds"] == 30
    options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
    assert bound.delete(f"{PODS}/p", options).code == 200
    assert bound.get(f"{PODS}/p").code == 404


def test_a_second_deletion_can_only_shorten_the_grace(bound: Client) -> None:
    bound.delete(f"{PODS}/p?gracePeriodSeconds=10")
    assert bound.delete(f"{PODS}/p").body["metadata"]["deletionGracePeriodSeconds"] == 10
    said = bound.delete(f"{PODS}/p?gracePeriodSeconds=5")
    assert said.body["metadata"]["deletionTimestamp"] == "2026-05-01T12:00:05Z"


def test_a_pod_that_has_ended_is_deleted_at_once(bound: Client) -> None:
    bound.patch(f"{PODS}/p/status", {"status": {"phase": "Succeeded"}})
    bound.delete(f"{PODS}/p")
    assert bound.get(f"{PODS}/p").code == 404


def test_a_pod_being_deleted_is_not_bound(client: Client) -> None:
    client.post(PODS, build_pod(finalizers=["example.com/wait"]))
    client.delete(f"{PODS}/p")
    said = client.post(f"{PODS}/p/binding", build_binding())
    assert said.why == (409, "Conflict")


def test_a_leaving_pod_with_a_finalizer_stays_until_both_let_go(bound: Client) -> None:
    bound.patch(f"{PODS}/p", {"metadata": {"finalizers": ["example.com/wait"]}})
    bound.delete(f"{PODS}/p")
    bound.patch(f"{PODS}/p", {"metadata": {"finalizers": None}})
    assert bound.get(f"{PODS}/p").code == 200
    bound.delete(f"{PODS}/p?gracePeriodSeconds=0")
    assert bound.get(f"{PODS}/p").code == 404


def test_an_eviction_deletes(bound: Client) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    assert bound.post(f"{PODS}/p/eviction", eviction).code == 201
    assert "deletionTimestamp" in bound.get(f"{PODS}/p").body["metadata"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param({"metadata": {"annotations": {"a": "b"}}}, 200, id="annotations"),
        pytest.param({"spec": {"activeDeadlineSeconds": 5}}, 200, id="deadline"),
        pytest.param({"spec": {"nodeName": "node-b"}}, 422, id="node"),
        pytest.param({"spec": {"nodeSelector": {"a": "b"}}}, 422, id="selector"),
        pytest.param(
            {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}}, 200, id="image"
        ),
        pytest.param(
            {
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "image": "busybox:1",
                            "resources": {"limits": {SLICES: "1"}},
                        }
                    ]
                }
            },
            422,
            id="resources",
        ),
    ],
)
def test_of_a_pods_spec_little_can_change(client: Client, change: Json, code: int) -> None:
    client.post(PODS, build_pod())
    kind = "application/strategic-merge-patch+json"
    assert client.patch(f"{PODS}/p", change, kind).code == code


def test_a_gated_pods_selector_can_change(client: Client) -> None:
    pod = build_pod()
    pod["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    client.post(PODS, pod)
    said = client.patch(
        f"{PODS}/p", {"spec": {"nodeSelector": {"a": "b"}, "schedulingGates": None}}
    )
    assert said.code == 200


def test_the_status_endpoint_keeps_the_spec_and_merges_conditions_by_type(bound: Client) -> None:
    change = {
        "spec": {"nodeName": "node-b"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    kind = "application/strategic-merge-patch+json"
    pod = bound.patch(f"{PODS}/p/status", change, kind).body
    assert pod["spec"]["nodeName"] == "node-a"
    assert pod["status"]["phase"] == "Running"
    assert [one["type"] for one in pod["status"]["conditions"]] == ["PodScheduled", "Ready"]
