# SPDX-License-Identifier: Apache-2.0
"""The verbs, over TLS, on the embedded API server."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.runtime.kube.client import PAGE_SIZE, KubeClient
from gpuslice.runtime.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NotFoundError,
)
from gpuslice.runtime.kube.resources import GPU_NODES, NODES, PODS
from gpuslice.sim.apiserver.server import ApiServer


def pod(name: str, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }


def names(things: Any) -> list[str]:
    return sorted(thing["metadata"]["name"] for thing in things)


def test_what_is_created_can_be_read(client: KubeClient) -> None:
    """Kind and version are filled in for those who leave them out."""
    made = client.create(PODS, pod("a"))
    assert client.get(PODS, "a", namespace="default") == made
    assert (made["kind"], made["apiVersion"]) == ("Pod", "v1")


def test_a_dry_run_stores_nothing(client: KubeClient) -> None:
    """All checks are made all the same."""
    client.create(PODS, pod("a"), dry_run=True)
    with pytest.raises(NotFoundError, match='pods "a" not found'):
        client.get(PODS, "a", namespace="default")


def test_a_second_one_of_a_name_exists_already(client: KubeClient) -> None:
    """Which is a conflict too, for those who catch that."""
    client.create(PODS, pod("a"))
    with pytest.raises(AlreadyExistsError) as caught:
        client.create(PODS, pod("a"))
    assert isinstance(caught.value, ConflictError)
    assert caught.value.code == 409


def test_what_is_wrong_is_refused_with_the_servers_words(client: KubeClient) -> None:
    """They name the field."""
    with pytest.raises(InvalidError):
        client.create(PODS, {"metadata": {"name": "NOT A NAME", "namespace": "default"}})


def test_lists_are_selected_by_labels_and_fields(client: KubeClient) -> None:
    """The server does the choosing."""
    client.create(PODS, pod("a", app="x"))
    bound = client.create(PODS, pod("b", app="y"))
    client.bind(bound, "node-1")
    assert names(client.list(PODS)) == ["a", "b"]
    assert names(client.list(PODS, namespace="default", labels="app=x")) == ["a"]
    assert names(client.list(PODS, fields="spec.nodeName=node-1")) == ["b"]


def test_status_is_compared_and_swapped(gpu_nodes: KubeClient) -> None:
    """The second of two writers that read the same version must read again."""
    made = gpu_nodes.create(GPU_NODES, {"metadata": {"name": "n"}, "spec": {"gpus": []}})
    first = gpu_nodes.replace(GPU_NODES, made | {"status": {"serving": True}}, status=True)
    assert first["status"] == {"serving": True}
    with pytest.raises(ConflictError) as caught:
        gpu_nodes.replace(GPU_NODES, made | {"status": {"serving": False}}, status=True)
    assert caught.value.reason == "Conflict"
    assert not isinstance(caught.value, AlreadyExistsError)


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        pytest.param("merge", {"metadata": {"labels": {"a/b": "1"}}}, id="merge"),
        pytest.param("strategic", {"metadata": {"labels": {"a/b": "1"}}}, id="strategic"),
        pytest.param(
            "json", [{"op": "add", "path": "/metadata/labels/a~1b", "value": "1"}], id="json"
        ),
    ],
)
def test_each_kind_of_patch_is_understood(client: KubeClient, kind: Any, patch: Any) -> None:
    """The content type tells the server which one it is."""
    client.create(NODES, {"metadata": {"name": "n", "labels": {"x": "y"}}})
    patched = client.patch(NODES, "n", patch, kind=kind)
    assert patched["metadata"]["labels"] == {"x": "y", "a/b": "1"}


def test_a_nodes_status_annotations_and_labels_change_in_one_patch(client: KubeClient) -> None:
    """The fits and the ledger's version must arrive together."""
    client.create(NODES, {"metadata": {"name": "n"}})
    patch = {
        "metadata": {"annotations": {"gpuslice.dev/ledger": "7"}},
        "status": {"allocatable": {"gpuslice.dev/fit-0.5": "2"}},
    }
    patched = client.patch(NODES, "n", patch, status=True)
    assert patched["status"]["allocatable"] == {"gpuslice.dev/fit-0.5": "2"}
    assert patched["metadata"]["annotations"] == {"gpuslice.dev/ledger": "7"}


def test_a_deletion_may_be_bound_to_one_object(client: KubeClient) -> None:
    """A pod of the same name may have come in its place."""
    client.create(PODS, pod("a"))
    with pytest.raises(ConflictError):
        client.delete(PODS, "a", namespace="default", uid="another")
    client.delete(PODS, "a", namespace="default", grace_seconds=0)
    with pytest.raises(NotFoundError):
        client.get(PODS, "a", namespace="default")


def test_a_pod_is_bound_once(client: KubeClient) -> None:
    """The second scheduler is told so."""
    made = client.create(PODS, pod("a"))
    client.bind(made, "n")
    assert client.get(PODS, "a", namespace="default")["spec"]["nodeName"] == "n"
    with pytest.raises(ConflictError, match="already assigned"):
        client.bind(made, "m")


def test_long_lists_are_read_whole(client: KubeClient) -> None:
    """Whether or not the server gives them in pages."""
    for number in range(PAGE_SIZE + 5):
        client.create(NODES, {"metadata": {"name": f"n{number}"}})
    assert len(client.list(NODES)) == PAGE_SIZE + 5


def test_any_path_can_be_read(server: ApiServer, client: KubeClient) -> None:
    """The server's version, for one."""
    assert "gitVersion" in client.raw("/version")
