# SPDX-License-Identifier: Apache-2.0
"""What each part of the product may do, and what nobody may do to it."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

from gpuslice.contract import names
from tests.cluster.harness.client import JSON_PATCH, Api, ApiError, Json, node_path, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.workloads import create_running, pod
from tests.cluster.product import accounts, namespaced
from tests.cluster.product.accounts import AGENT, WEBHOOK, Account
from tests.cluster.product.applying import warnings
from tests.cluster.product.serving import GPU_NODES, gpu_node_path
from tests.cluster.product.sharing import sharing

DRY = "?dryRun=All"
MAY_EVERYWHERE = {
    WEBHOOK: """
        pods: get list watch
        nodes: get list watch
        gpunodes.gpuslice.dev: get list watch
        gpunodes.gpuslice.dev/status: update
        gpushares.gpuslice.dev: get list watch create update delete
        mutatingwebhookconfigurations.admissionregistration.k8s.io: list
        validatingwebhookconfigurations.admissionregistration.k8s.io: list
    """,
    AGENT: """
        pods: get list watch patch
        nodes: get list watch
        nodes/status: patch
        events: create patch
        gpunodes.gpuslice.dev: get list watch create update
        gpunodes.gpuslice.dev/status: update
        gpushares.gpuslice.dev: get list watch
    """,
}
MAY_AT_HOME = {
    WEBHOOK: """
        secrets: create
        events: create patch
    """,
    AGENT: "",
}
MAY_BY_NAME = {
    "gpuslice": """
        mutatingwebhookconfigurations.admissionregistration.k8s.io: get patch
        validatingwebhookconfigurations.admissionregistration.k8s.io: get patch
    """,
    "gpuslice-webhook-tls": "secrets: get update",
}
BOTH = pytest.mark.parametrize("account", [WEBHOOK, AGENT], ids=["webhook", "agent"])


def _own_rights(api: Api, account: Account, **where: str) -> set[accounts.Right]:
    """What an account may do that not every service account may."""
    anybody = Account(namespace="default", name="anybody")
    rights = accounts.rights(api, account, **where)
    return rights - accounts.rights(api, anybody, **where)


@BOTH
def test_an_account_may_do_this_in_all_namespaces_and_nothing_else(
    product: Cluster, account: Account
) -> None:
    expected = accounts.table(MAY_EVERYWHERE[account])
    assert _own_rights(product.api, account, namespace="") == expected


@BOTH
def test_an_account_may_do_this_more_in_its_own_namespace(
    product: Cluster, account: Account
) -> None:
    everywhere = accounts.table(MAY_EVERYWHERE[account])
    own = _own_rights(product.api, account, namespace=account.namespace)
    assert own - everywhere == accounts.table(MAY_AT_HOME[account])


@pytest.mark.parametrize("name", sorted(MAY_BY_NAME))
def test_the_webhook_may_do_this_more_with_what_is_its_own_by_name(
    product: Cluster, name: str
) -> None:
    unnamed = accounts.table(MAY_EVERYWHERE[WEBHOOK]) | accounts.table(MAY_AT_HOME[WEBHOOK])
    own = _own_rights(product.api, WEBHOOK, namespace="gpuslice", name=name)
    assert own - unnamed == accounts.table(MAY_BY_NAME[name])


def test_the_webhooks_namespace_takes_only_restricted_pods(product: Cluster) -> None:
    """Its own pods are such; a pod like any other isn't."""
    with pytest.raises(ApiError, match='violates PodSecurity "restricted:latest"'):
        product.api.create(pod_path(namespace="gpuslice") + DRY, pod("any", namespace="gpuslice"))
    pods = product.api.items(pod_path(namespace="gpuslice"))
    assert len(pods) == 2
    enforced = product.kubectl(
        *("label", "namespace", "gpuslice", "--overwrite", "--dry-run=server"),
        "pod-security.kubernetes.io/enforce=restricted",
    )
    assert warnings(enforced) == []


def test_the_device_plugin_breaks_restricted_only_by_its_mounts_and_its_user(
    product: Cluster,
) -> None:
    asked = product.kubectl(
        *("label", "namespace", "gpuslice-nodes", "--overwrite", "--dry-run=server"),
        "pod-security.kubernetes.io/enforce=restricted",
    )
    [_, found] = warnings(asked)
    broken = found.partition(": ")[2]
    assert sorted(broken.split(", ")) == [
        "restricted volume types",
        "runAsNonRoot != true",
        "runAsUser=0",
    ]


@pytest.fixture(scope="module")
def shared(product: Cluster) -> Iterator[Json]:
    """A running pod with half a GPU of node-b, which nobody changes."""
    with namespaced.namespace(product, "security") as namespace:
        manifest = sharing("shared", fraction="0.5", namespace=namespace, node="node-b")
        yield create_running(product.api, manifest)


def _path(made: Json, subresource: str = "") -> str:
    path = pod_path(made["metadata"]["name"], made["metadata"]["namespace"])
    return f"{path}/{subresource}".rstrip("/")


CHANGES = (
    ("can't be changed", {"labels": {names.SHARE_LABEL: "0.1"}}),
    ("can't be changed", {"labels": {names.SHARE_LABEL: None}}),
    ("can't be changed", {"annotations": {names.FRACTION: "0.1"}}),
    ("can't be changed", {"annotations": {names.FRACTION: None}}),
    ("can't be changed", {"annotations": {names.MEMORY: "100"}}),
    ("can't be changed", {"annotations": {names.prefixed(names.FRACTION): "0.1"}}),
    ("gpuslice's own", {"annotations": {names.GPU_ANNOTATION: "GPU-x"}}),
    ("gpuslice's own", {"annotations": {names.MEMORY_MIB_ANNOTATION: None}}),
    ("gpuslice's own", {"annotations": {names.SLICES_ANNOTATION: "1"}}),
)


@pytest.mark.parametrize("subresource", ["", "status"], ids=["pod", "pod-status"])
def test_nobody_changes_what_admission_and_arbiter_wrote(
    product: Cluster, shared: Json, subresource: str
) -> None:
    """Not even a cluster's administrator, who may do everything else."""
    path = _path(shared, subresource)
    answers = [_answer(product.api, f"{path}{DRY}", metadata) for _, metadata in CHANGES]
    wrong = [
        (metadata, answer)
        for (said, metadata), answer in zip(CHANGES, answers, strict=True)
        if said not in answer
    ]
    assert wrong == []


def _answer(api: Api, path: str, metadata: Json) -> str:
    try:
        api.patch(path, {"metadata": metadata})
    except ApiError as err:
        return err.message
    return "allowed"


def test_everything_else_of_a_sharing_pod_is_its_owners(product: Cluster, shared: Json) -> None:
    metadata = {"labels": {"team": "a"}, "annotations": {"note": "mine"}}
    changed = product.api.patch(f"{_path(shared)}{DRY}", {"metadata": metadata})
    assert changed["metadata"]["labels"]["team"] == "a"


def test_an_ordinary_pod_is_not_made_a_sharing_one_later(product: Cluster, namespace: str) -> None:
    made = product.api.create(pod_path(namespace=namespace), sharing("plain", namespace=namespace))
    with pytest.raises(ApiError, match="can't be changed"):
        product.api.patch(_path(made), {"metadata": {"labels": {names.SHARE_LABEL: "0.5"}}})


def _agent(product: Cluster, node: str) -> Api:
    return accounts.client(product, AGENT, pod=accounts.agent_pod(product, node))


LABELS = {"metadata": {"labels": {names.PRODUCT_LABEL: "x"}}}


def test_an_agent_writes_what_is_its_own_nodes(product: Cluster, shared: Json) -> None:
    agent = _agent(product, "node-b")
    agent.patch(f"{node_path('node-b')}/status{DRY}", LABELS)
    ledger = agent.get(gpu_node_path("node-b"))
    agent.replace(f"{gpu_node_path('node-b')}/status{DRY}", ledger)
    agent.replace(f"{gpu_node_path('node-b')}{DRY}", ledger)
    told = {"metadata": {"annotations": {names.GPU_ANNOTATION: "GPU-x"}}}
    agent.patch(f"{_path(shared)}{DRY}", told)


def _is_refused(api: Api, method: str, path: str, body: object, **how: Any) -> str:
    with pytest.raises(ApiError) as refused:
        api.request(method, path, body, **how)
    assert refused.value.status in {HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY}
    return refused.value.message


def test_an_agent_is_refused_what_is_another_nodes(product: Cluster, shared: Json) -> None:
    agent = _agent(product, "node-a")
    merge = {"content_type": "application/merge-patch+json"}
    told = {"metadata": {"annotations": {names.GPU_ANNOTATION: "GPU-x"}}}
    ledger = agent.get(gpu_node_path("node-b"))
    foreign = {**ledger, "metadata": {"name": "node-b2"}}
    for method, path, body, how in (
        ("PATCH", f"{node_path('node-b')}/status", LABELS, merge),
        ("PUT", f"{gpu_node_path('node-b')}/status", ledger, {}),
        ("PUT", gpu_node_path("node-b"), ledger, {}),
        ("POST", GPU_NODES, foreign, {}),
        ("PATCH", _path(shared), told, merge),
    ):
        message = _is_refused(agent, method, path, body, **how)
        assert 'the agent of node "node-a" may not write' in message


def test_an_agent_changes_no_spec_of_a_pod_on_its_node(product: Cluster, shared: Json) -> None:
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "other"}]
    agent = _agent(product, "node-b")
    message = _is_refused(agent, "PATCH", _path(shared), image, content_type=JSON_PATCH)
    assert "an agent may write a pod's annotations, not its spec" in message


def test_an_agents_token_that_names_no_node_writes_nothing(product: Cluster) -> None:
    nobody = accounts.client(product, AGENT)
    ledger = nobody.get(gpu_node_path("node-b"))
    message = _is_refused(nobody, "PUT", f"{gpu_node_path('node-b')}/status", ledger)
    assert 'the agent of node "" may not write' in message
