# SPDX-License-Identifier: Apache-2.0
"""Applying and deleting manifests against an API of dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.cli.applying import apply, delete, delete_named, in_order, merge_patch
from gpuslice.cli.kinds import UnknownKindError, resource_named, resource_of
from gpuslice.cli.manifests import Manifest, read_manifests
from gpuslice.runtime.kube.errors import NotFoundError
from gpuslice.runtime.kube.resources import PODS, Resource

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"


def merged(there: Any, patch: Any) -> Any:
    """Apply a merge patch as RFC 7386 says."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(there) if isinstance(there, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class Objects:
    """An API that keeps objects by path."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> dict[str, Any]:
        path = resource.path(namespace=namespace, name=name)
        if path not in self.kept:
            raise NotFoundError(path, code=404)
        return self.kept[path]

    def list(self, resource: Resource, *, namespace: str = "") -> tuple[dict[str, Any], ...]:
        path = resource.path(namespace=namespace)
        return tuple(each for key, each in self.kept.items() if key.startswith(path))

    def create(
        self, resource: Resource, thing: Mapping[str, Any], *, namespace: str = ""
    ) -> dict[str, Any]:
        metadata = thing["metadata"]
        name = metadata.get("name") or f"{metadata['generateName']}x"
        path = resource.path(namespace=namespace, name=name)
        self.kept[path] = {**thing, "metadata": {**metadata, "name": name}}
        return self.kept[path]

    def patch(
        self, resource: Resource, name: str, patch: Mapping[str, Any], *, namespace: str = ""
    ) -> dict[str, Any]:
        path = resource.path(namespace=namespace, name=name)
        self.kept[path] = merged(self.kept[path], patch)
        return self.kept[path]

    def delete(self, resource: Resource, name: str, *, namespace: str = "") -> dict[str, Any]:
        self.get(resource, name, namespace=namespace)
        return self.kept.pop(resource.path(namespace=namespace, name=name))


def pod(name: str, **metadata: Any) -> Manifest:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}}
    return Manifest(source="-", body=body)


def test_an_object_is_created_once_and_then_unchanged_until_it_changes() -> None:
    api = Objects()
    assert apply(api, pod("a")) == "pod/a created"
    assert apply(api, pod("a")) == "pod/a unchanged"
    changed = Manifest(source="-", body={**pod("a").body, "spec": {"x": 1}})
    assert apply(api, changed) == "pod/a configured"


def test_what_others_changed_stays_and_what_the_author_takes_out_goes() -> None:
    api = Objects()
    spec = {"schedulerName": "other", "nodeSelector": {"a": "1", "b": "2"}}
    first = Manifest(source="-", body={**pod("a").body, "spec": spec})
    apply(api, first)
    (path,) = api.kept
    api.kept[path]["spec"] = {**spec, "schedulerName": "default-scheduler", "nodeName": "n"}
    assert apply(api, first) == "pod/a unchanged"
    second = Manifest(source="-", body={**first.body, "spec": {**spec, "nodeSelector": {"a": "1"}}})
    assert apply(api, second) == "pod/a configured"
    assert api.kept[path]["spec"] == {
        "schedulerName": "default-scheduler",
        "nodeName": "n",
        "nodeSelector": {"a": "1"},
    }


def test_an_object_that_was_not_applied_gets_the_whole_manifest() -> None:
    api = Objects()
    api.create(PODS, pod("a").body, namespace="default")
    assert apply(api, pod("a", labels={"x": "y"})) == "pod/a configured"
    assert api.kept["/api/v1/namespaces/default/pods/a"]["metadata"]["labels"] == {"x": "y"}


VALUES = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(before=BODIES, after=BODIES)
def test_a_merge_patch_leads_from_one_object_to_the_other(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert merged(before, merge_patch(before, after)) == after
    assert merge_patch(after, after) == {}


def test_the_manifests_own_namespace_wins_over_the_commands() -> None:
    api = Objects()
    apply(api, pod("a", namespace="own"), "asked")
    apply(api, pod("b"), "asked")
    apply(api, pod("c"))
    assert list(api.kept) == [
        "/api/v1/namespaces/own/pods/a",
        "/api/v1/namespaces/asked/pods/b",
        "/api/v1/namespaces/default/pods/c",
    ]


def test_a_prefix_gets_its_name_from_the_server() -> None:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "job-"}}
    assert apply(Objects(), Manifest(source="-", body=body)) == "pod/job-x created"


def test_the_queues_of_the_examples_apply_once_their_definition_is_there() -> None:
    api = Objects()
    with Path("/dev/null").open() as nothing:
        queues = read_manifests(str(EXAMPLES / "queues.yaml"), nothing)
        crds = read_manifests(str(EXAMPLES / "crds"), nothing)
    with pytest.raises(UnknownKindError, match=r"serves no Queue of scheduling\.run\.ai/v2"):
        apply(api, queues[0])
    said = [apply(api, manifest) for manifest in in_order([*queues, *crds])]
    assert said == [
        "customresourcedefinition/queues.scheduling.run.ai created",
        "queue/default created",
        "queue/test created",
    ]
    assert "/apis/scheduling.run.ai/v2/queues/test" in api.kept


def test_deleting_says_whether_there_was_one() -> None:
    api = Objects()
    apply(api, pod("a"))
    assert delete(api, pod("a")) == "pod/a deleted"
    assert delete_named(api, PODS, "a") == "pod/a not found"


@pytest.mark.parametrize("text", ["pods", "pod", "po", "Pod"])
def test_a_kind_has_the_names_that_people_use(text: str) -> None:
    assert resource_named(text) is PODS


def test_kinds_that_are_not_there_are_refused_with_examples() -> None:
    with pytest.raises(UnknownKindError, match=r'no kind "pud" here; e\.g\. pods, nodes, gpunodes'):
        resource_named("pud")
    with pytest.raises(UnknownKindError, match="is its definition applied"):
        resource_of({"apiVersion": "x/v1", "kind": "Y"})
