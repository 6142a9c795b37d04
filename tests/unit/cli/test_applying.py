# SPDX-License-Identifier: Apache-2.0
"""Applying and deleting manifests against an API of dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuslice.cli.applying import apply, delete, delete_named, in_order
from gpuslice.cli.kinds import UnknownKindError, resource_named, resource_of
from gpuslice.cli.manifests import Manifest, read_manifests
from gpuslice.runtime.kube.errors import NotFoundError
from gpuslice.runtime.kube.resources import PODS, Resource

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"


class Objects:
    """An API that keeps objects by path."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        self._version = 0

    def _keep(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        old = self.kept.get(path, {})
        if dict(body) != {key: value for key, value in old.items() if key != "metadata"} | {
            "metadata": body["metadata"]
        }:
            self._version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self._version)}
        self.kept[path] = {**body, "metadata": metadata}
        return self.kept[path]

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
        return self._keep(path, {**thing, "metadata": {**metadata, "name": name}})

    def patch(
        self, resource: Resource, name: str, patch: Mapping[str, Any], *, namespace: str = ""
    ) -> dict[str, Any]:
        return self._keep(resource.path(namespace=namespace, name=name), patch)

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
