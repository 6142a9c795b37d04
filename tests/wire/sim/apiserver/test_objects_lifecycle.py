# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from tests.wire.sim.apiserver.asking import (
    JSON_PATCH,
    MERGE,
    NODES,
    PODS,
    SHARES,
    STRATEGIC,
    Client,
    build_pod,
    build_share,
)

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
NODE = {"metadata": {"name": "node-a"}, "status": {"capacity": {"cpu": "4"}}}


def test_a_created_object_bears_what_the_server_writes(client: Client) -> None:
    said = client.post(CONFIGMAPS, {"metadata": {"name": "a", "uid": "mine"}, "data": {"k": "v"}})
    assert said.code == 201
    meta = said.body["metadata"]
    assert (said.body["apiVersion"], said.body["kind"]) == ("v1", "ConfigMap")
    assert meta["creationTimestamp"] == "2026-05-01T12:00:00Z"
    assert meta["namespace"] == "default"
    assert meta["uid"] != "mine"
    assert client.get(f"{CONFIGMAPS}/a").body == said.body


def test_resource_versions_grow_over_all_kinds(client: Client) -> None:
    first = client.post(CONFIGMAPS, {"metadata": {"name": "a"}})
    second = client.post(NODES, NODE)
    assert int(second.version) == int(first.version) + 1


def test_a_generated_name_extends_its_base(client: Client) -> None:
    said = client.post(CONFIGMAPS, {"metadata": {"generateName": "web-"}})
    name = said.body["metadata"]["name"]
    assert name.startswith("web-")
    assert len(name) == len("web-") + 5


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        pytest.param(
            CONFIGMAPS, {"metadata": {"name": "there"}}, (409, "AlreadyExists"), id="twice"
        ),
        pytest.param(CONFIGMAPS, {"metadata": {"name": "No_Name"}}, (422, "Invalid"), id="name"),
        pytest.param(CONFIGMAPS, {"metadata": {}}, (422, "Invalid"), id="nameless"),
        pytest.param(CONFIGMAPS, [], (400, "BadRequest"), id="no object"),
        pytest.param(CONFIGMAPS, b"{", (400, "BadRequest"), id="no JSON"),
        pytest.param(
            CONFIGMAPS, {"kind": "Secret", "apiVersion": "v1"}, (400, "BadRequest"), id="kind"
        ),
        pytest.param(
            CONFIGMAPS,
            {"metadata": {"name": "a", "namespace": "other"}},
            (400, "BadRequest"),
            id="another namespace",
        ),
        pytest.param(
            CONFIGMAPS,
            {"metadata": {"name": "a", "annotations": {"k": 1}}},
            (400, "BadRequest"),
            id="a number as annotation",
        ),
        pytest.param(
            CONFIGMAPS,
            {"metadata": {"name": "a", "labels": {"k": "not a label"}}},
            (422, "Invalid"),
            id="label value",
        ),
        pytest.param(
            CONFIGMAPS,
            {"metadata": {"name": "a", "resourceVersion": "7"}},
            (400, "BadRequest"),
            id="a version at creation",
        ),
        pytest.param(
            "/api/v1/namespaces/nowhere/configmaps",
            {"metadata": {"name": "a"}},
            (404, "NotFound"),
            id="no such namespace",
        ),
        pytest.param("/apis/example.com/v1/shares", {}, (404, "NotFound"), id="no such kind"),
        pytest.param(
            "/api/v1/configmaps",
            {"metadata": {"name": "a"}},
            (405, "MethodNotAllowed"),
            id="no namespace",
        ),
    ],
)
def test_a_wrong_creation_is_refused(
    client: Client, path: str, body: Any, why: tuple[int, str]
) -> None:
    client.post(CONFIGMAPS, {"metadata": {"name": "there"}})
    said = client.post(path, body)
    assert said.why == why
    assert said.body["kind"] == "Status"
    assert client.names(CONFIGMAPS) == ["there"]


def test_what_is_missing_is_named(client: Client) -> None:
    said = client.get(f"{CONFIGMAPS}/a")
    assert said.why == (404, "NotFound")
    assert said.body["message"] == 'configmaps "a" not found'
    assert said.body["details"] == {"name": "a", "kind": "configmaps"}


def test_a_stale_put_is_a_conflict(client: Client) -> None:
    first = client.post(CONFIGMAPS, {"metadata": {"name": "a"}}).body
    assert client.put(f"{CONFIGMAPS}/a", {**first, "data": {"k": "1"}}).code == 200
    said = client.put(f"{CONFIGMAPS}/a", {**first, "data": {"k": "2"}})
    assert said.why == (409, "Conflict")
    assert client.get(f"{CONFIGMAPS}/a").body["data"] == {"k": "1"}


def test_a_patch_that_names_a_stale_version_is_a_conflict(client: Client) -> None:
    first = client.post(CONFIGMAPS, {"metadata": {"name": "a"}})
    client.patch(f"{CONFIGMAPS}/a", {"data": {"k": "1"}})
    stale = {"metadata": {"resourceVersion": first.version}, "data": {"k": "2"}}
    assert client.patch(f"{CONFIGMAPS}/a", stale).why == (409, "Conflict")


def test_a_put_of_a_built_in_kind_needs_no_version(client: Client) -> None:
    client.post(CONFIGMAPS, {"metadata": {"name": "a"}})
    assert (
        client.put(f"{CONFIGMAPS}/a", {"metadata": {"name": "a"}, "data": {"k": "1"}}).code == 200
    )


def test_a_put_of_a_custom_kind_needs_its_version(shares: Client) -> None:
    shares.post(SHARES, build_share())
    assert shares.put(f"{SHARES}/half", build_share()).why == (422, "Invalid")


def test_a_write_that_changes_nothing_keeps_the_version(client: Client) -> None:
    before = client.post(CONFIGMAPS, {"metadata": {"name": "a"}, "data": {"k": "1"}})
    assert client.patch(f"{CONFIGMAPS}/a", {"data": {"k": "1"}}).version == before.version


@pytest.mark.parametrize(
    ("content_type", "patch"),
    [
        pytest.param(MERGE, {"data": {"k": None, "new": "1"}}, id="merge"),
        pytest.param(STRATEGIC, {"data": {"k": None, "new": "1"}}, id="strategic"),
        pytest.param(
            JSON_PATCH,
            [
                {"op": "remove", "path": "/data/k"},
                {"op": "add", "path": "/data/new", "value": "1"},
            ],
            id="json patch",
        ),
    ],
)
def test_three_kinds_of_patch_are_taken(client: Client, content_type: str, patch: Any) -> None:
    client.post(CONFIGMAPS, {"metadata": {"name": "a"}, "data": {"k": "v", "kept": "0"}})
    said = client.patch(f"{CONFIGMAPS}/a", patch, content_type)
    assert said.body["data"] == {"kept": "0", "new": "1"}


def test_an_apply_patch_is_an_unknown_format(client: Client) -> None:
    client.post(CONFIGMAPS, {"metadata": {"name": "a"}})
    said = client.patch(f"{CONFIGMAPS}/a", {}, "application/apply-patch+yaml")
    assert said.why == (415, "UnsupportedMediaType")


def test_custom_kinds_take_no_strategic_patch(shares: Client) -> None:
    shares.post(SHARES, build_share())
    assert shares.patch(f"{SHARES}/half", {}, STRATEGIC).code == 415


def test_a_json_patch_that_points_nowhere_is_invalid(client: Client) -> None:
    client.post(CONFIGMAPS, {"metadata": {"name": "a"}})
    said = client.patch(f"{CONFIGMAPS}/a", [{"op": "remove", "path": "/data/k"}], JSON_PATCH)
    assert said.why == (422, "Invalid")


def test_a_patch_can_not_change_what_only_the_server_writes(client: Client) -> None:
    before = client.post(CONFIGMAPS, {"metadata": {"name": "a"}}).body["metadata"]
    said = client.patch(
        f"{CONFIGMAPS}/a", {"metadata": {"creationTimestamp": "2000-01-01T00:00:00Z"}}
    )
    assert said.body["metadata"] == before


def test_the_main_endpoint_ignores_the_status(shares: Client) -> None:
    shares.post(SHARES, build_share(status={"used": 1}))
    said = shares.patch(f"{SHARES}/half", {"spec": {"size": 6}, "status": {"used": 2}})
    assert "status" not in said.body
    assert said.body["spec"] == {"size": 6}
    assert said.body["metadata"]["generation"] == 2


def test_the_status_endpoint_takes_only_a_custom_kinds_status(shares: Client) -> None:
    shares.post(SHARES, build_share())
    change = {"spec": {"size": 6}, "status": {"used": 2}, "metadata": {"labels": {"a": "b"}}}
    said = shares.patch(f"{SHARES}/half/status", change)
    assert said.body["status"] == {"used": 2}
    assert said.body["spec"] == {"size": 5}
    assert "labels" not in said.body["metadata"]
    assert said.body["metadata"]["generation"] == 1


def test_a_status_put_with_a_stale_version_is_a_conflict(shares: Client) -> None:
    first = shares.post(SHARES, build_share()).body
    assert shares.put(f"{SHARES}/half/status", {**first, "status": {"used": 1}}).code == 200
    said = shares.put(f"{SHARES}/half/status", {**first, "status": {"used": 2}})
    assert said.why == (409, "Conflict")


def test_a_nodes_status_endpoint_takes_status_annotations_and_labels_in_one_write(
    client: Client,
) -> None:
    first = client.post(NODES, NODE)
    assert first.body["status"]["allocatable"] == {"cpu": "4"}
    change = {
        "metadata": {"annotations": {"gpuslice.dev/ledger": "7"}, "labels": {"room": "3"}},
        "spec": {"unschedulable": True},
        "status": {"capacity": {"gpuslice.dev/fit-0.5": "2"}},
    }
    said = client.patch(f"{NODES}/node-a/status", change, STRATEGIC)
    assert int(said.version) == int(first.version) + 1
    assert said.body["metadata"]["annotations"] == {"gpuslice.dev/ledger": "7"}
    assert said.body["metadata"]["labels"] == {"room": "3"}
    assert said.body["status"]["capacity"] == {"cpu": "4", "gpuslice.dev/fit-0.5": "2"}
    assert said.body["spec"] == {}


def test_the_status_of_a_kind_without_one_is_no_path(client: Client) -> None:
    client.post(CONFIGMAPS, {"metadata": {"name": "a"}})
    assert client.patch(f"{CONFIGMAPS}/a/status", {}).code == 404


def test_a_deletion_keeps_its_preconditions(client: Client) -> None:
    made = client.post(CONFIGMAPS, {"metadata": {"name": "a"}})
    wrong = client.delete(f"{CONFIGMAPS}/a", {"preconditions": {"uid": "another"}})
    assert wrong.why == (409, "Conflict")
    right = {"uid": made.body["metadata"]["uid"], "resourceVersion": made.version}
    said = client.delete(f"{CONFIGMAPS}/a", {"preconditions": right})
    assert (said.code, said.body["status"]) == (200, "Success")
    assert client.get(f"{CONFIGMAPS}/a").code == 404


def test_a_finalizer_holds_an_object_back(client: Client) -> None:
    client.post(CONFIGMAPS, {"metadata": {"name": "a", "finalizers": ["example.com/wait"]}})
    said = client.delete(f"{CONFIGMAPS}/a")
    assert said.body["metadata"]["deletionTimestamp"] == "2026-05-01T12:00:00Z"
    client.patch(f"{CONFIGMAPS}/a", {"metadata": {"finalizers": None}})
    assert client.get(f"{CONFIGMAPS}/a").code == 404


def test_what_a_deleted_object_owned_goes_with_it(client: Client) -> None:
    owner = client.post(NODES, NODE).body
    reference = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "node-a",
        "uid": owner["metadata"]["uid"],
    }
    other = {**reference, "name": "node-b", "uid": "another"}
    for name, references in (("own", [reference]), ("shared", [reference, other])):
        client.post(CONFIGMAPS, {"metadata": {"name": name, "ownerReferences": references}})
    client.delete(f"{NODES}/node-a")
    assert client.names(CONFIGMAPS) == ["shared"]
    kept = client.get(f"{CONFIGMAPS}/shared").body["metadata"]["ownerReferences"]
    assert kept == [other]


def test_a_collection_is_deleted_by_selector(client: Client) -> None:
    for name, team in (("a", "red"), ("b", "blue"), ("c", "red")):
        client.post(CONFIGMAPS, {"metadata": {"name": name, "labels": {"team": team}}})
    client.delete(f"{CONFIGMAPS}?labelSelector=team%3Dred")
    assert client.names(CONFIGMAPS) == ["b"]


def test_a_deleted_namespace_takes_its_objects_along(client: Client) -> None:
    client.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    client.post("/api/v1/namespaces/team/configmaps", {"metadata": {"name": "a"}})
    client.delete("/api/v1/namespaces/team")
    assert client.names("/api/v1/configmaps") == []


def test_a_dry_run_persists_nothing(client: Client) -> None:
    assert client.post(f"{PODS}?dryRun=All", build_pod()).code == 201
    assert client.names(PODS) == []
    client.post(PODS, build_pod())
    changed = client.patch(f"{PODS}/p?dryRun=All", {"metadata": {"labels": {"a": "b"}}})
    assert changed.body["metadata"]["labels"] == {"a": "b"}
    assert client.delete(f"{PODS}/p?dryRun=All").code == 200
    assert "labels" not in client.get(f"{PODS}/p").body["metadata"]


def test_an_unknown_dry_run_is_refused(client: Client) -> None:
    assert client.post(f"{PODS}?dryRun=Some", build_pod()).code == 422


def test_lists_are_selected_by_label_and_field(client: Client) -> None:
    for name, team in (("a", "red"), ("b", "blue")):
        client.post(CONFIGMAPS, {"metadata": {"name": name, "labels": {"team": team}}})
    assert client.names(f"{CONFIGMAPS}?labelSelector=team+in+(blue,green)") == ["b"]
    assert client.names(f"{CONFIGMAPS}?fieldSelector=metadata.name!%3Db") == ["a"]
    said = client.get(f"{CONFIGMAPS}?fieldSelector=data.k%3Dv")
    assert said.why == (400, "BadRequest")


def test_a_crd_makes_its_kind_served_until_it_is_deleted(shares: Client) -> None:
    found = shares.get("/apis/example.com/v1").body["resources"]
    assert [(one["name"], one["kind"]) for one in found] == [
        ("shares", "Share"),
        ("shares/status", "Share"),
    ]
    assert found[0]["shortNames"] == ["sh"]
    shares.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/shares.example.com")
    assert shares.get(SHARES).why == (404, "NotFound")


def test_discovery_lists_groups_and_resources(client: Client) -> None:
    assert client.get("/version").body["major"] == "1"
    assert client.get("/api").body["versions"] == ["v1"]
    assert "coordination.k8s.io" in {one["name"] for one in client.get("/apis").body["groups"]}
    resources = {one["name"]: one for one in client.get("/api/v1").body["resources"]}
    assert resources["pods/binding"]["kind"] == "Binding"
    assert resources["nodes"]["namespaced"] is False
    assert client.get("/readyz").text == "ok"
    assert client.get("/apis/nothing.dev/v1").code == 404
