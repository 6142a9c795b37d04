# SPDX-License-Identifier: Apache-2.0
"""The ways round the arbiter: each is closed, or ends in a ledger that is right."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from gpuslice.contract import names
from gpuslice.sim.observation import is_bound, name
from tests.cluster.harness.client import ApiError, Json, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.waiting import wait_until
from tests.cluster.harness.workloads import create_running, wait_running
from tests.cluster.product.applying import apply, warnings
from tests.cluster.product.binding import REFUSAL, bind, lost_binds, scheduler_still
from tests.cluster.product.sharing import sharing
from tests.cluster.product.witness import Witness, claims_of

RESERVATION_SECONDS = 120
"""Without a setting."""


@pytest.fixture
def still(product: Cluster, namespace: str) -> Iterator[None]:
    """The scheduler does nothing during the test."""
    with scheduler_still(product):
        yield


def _create(cluster: Cluster, manifest: Json) -> Json:
    return cluster.api.create(pod_path(namespace=manifest["metadata"]["namespace"]), manifest)


def _told(pod: Json) -> str:
    return str(pod["metadata"]["annotations"][names.GPU_ANNOTATION])


def test_a_pod_that_names_its_node_is_refused_with_the_way(
    product: Cluster, namespace: str
) -> None:
    manifest = sharing("placed", fraction="0.5", namespace=namespace, spec={"nodeName": "node-a"})
    with pytest.raises(ApiError, match=r"spec\.nodeName") as refused:
        _create(product, manifest)
    assert "nodeSelector: {kubernetes.io/hostname: node-a}" in refused.value.message


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("says_uid", [True, False], ids=["with-uid", "without-uid"])
@pytest.mark.parametrize("by_bindings", [False, True], ids=["pods-binding", "bindings"])
def test_a_bind_by_hand_gets_a_gpu_too(
    product: Cluster, namespace: str, *, says_uid: bool, by_bindings: bool
) -> None:
    made = _create(product, sharing("by-hand", fraction="0.5", namespace=namespace))
    bind(product, made, "node-b", says_uid=says_uid, by_bindings=by_bindings)
    bound = product.api.get(pod_path("by-hand", namespace))
    assert _told(bound) in product.nodes["node-b"].gpus.uuids
    running = wait_running(product.api, made)
    assert (_told(bound),) == Witness(product).check().gpus_of(running)


@pytest.mark.usefixtures("still")
def test_a_bind_by_hand_is_refused_where_no_gpu_has_room(product: Cluster, namespace: str) -> None:
    for number in range(2):
        made = _create(product, sharing(f"most-{number}", fraction="0.7", namespace=namespace))
        bind(product, made, "node-b")
        wait_running(product.api, made)
    third = _create(product, sharing("third", fraction="0.4", namespace=namespace))
    with pytest.raises(ApiError) as refused:
        bind(product, third, "node-b")
    assert refused.value.status == HTTPStatus.CONFLICT
    assert "node-b" in refused.value.message
    assert not is_bound(product.api.get(pod_path("third", namespace)))
    assert {claim["pod"]["name"] for claim in claims_of(product, namespace)} == {
        "most-0",
        "most-1",
    }


@pytest.mark.usefixtures("still")
def test_a_dry_run_of_a_bind_leaves_no_claim(product: Cluster, namespace: str) -> None:
    made = _create(product, sharing("dry", fraction="0.5", namespace=namespace))
    bind(product, made, "node-a", dry_run=True)
    assert list(claims_of(product, namespace)) == []
    assert not is_bound(product.api.get(pod_path("dry", namespace)))


@pytest.mark.parametrize("node", ["node-a", "node-b"], ids=["same-node", "other-node"])
def test_a_second_bind_of_a_bound_pod_is_refused_and_changes_nothing(
    product: Cluster, namespace: str, node: str
) -> None:
    manifest = sharing("bound", fraction="0.5", namespace=namespace, node="node-a")
    running = create_running(product.api, manifest)
    [before] = claims_of(product, namespace)
    with pytest.raises(ApiError) as refused:
        bind(product, running, node)
    assert refused.value.status == HTTPStatus.CONFLICT
    assert list(claims_of(product, namespace)) == [before]
    assert product.api.get(pod_path("bound", namespace))["spec"]["nodeName"] == "node-a"


def test_the_arbiters_annotations_cannot_be_brought_along(product: Cluster, namespace: str) -> None:
    foreign = product.nodes["node-c"].gpus.uuids[0]
    copied = {names.GPU_ANNOTATION: foreign, names.MEMORY_MIB_ANNOTATION: "1"}
    manifest = sharing(
        "copied", fraction="0.5", annotations=copied, namespace=namespace, node="node-a"
    )
    [warning] = warnings(apply(product, manifest))
    assert names.GPU_ANNOTATION in warning
    assert names.MEMORY_MIB_ANNOTATION in warning
    running = wait_running(product.api, manifest)
    assert _told(running) in product.nodes["node-a"].gpus.uuids


def test_pods_of_an_unknown_scheduler_do_not_share_and_are_told(
    product: Cluster, namespace: str
) -> None:
    manifest = sharing(
        "other", fraction="0.5", namespace=namespace, spec={"schedulerName": "other"}
    )
    said = " ".join(warnings(apply(product, manifest)))
    assert "scheduler other places it" in said
    made = product.api.get(pod_path("other", namespace))
    assert names.SHARE_LABEL not in made["metadata"].get("labels", {})


def test_a_forced_deletion_frees_no_memory_that_a_process_still_has(
    product: Cluster, namespace: str
) -> None:
    """The pod is gone at once; its process ignores SIGTERM, so kubelet takes a while to end it."""
    stubborn = sharing(
        "stubborn",
        fraction="1",
        namespace=namespace,
        node="node-c",
        command=("sh", "-c", "trap '' TERM; while :; do sleep 4242; done"),
    )
    for manifest in (
        stubborn,
        sharing("quiet", fraction="1", namespace=namespace, node="node-c"),
    ):
        create_running(product.api, manifest)
    node = product.nodes["node-c"]
    assert _lives(product)
    target = ("stubborn", f"--namespace={namespace}")
    product.kubectl("delete", "pod", *target, "--force", "--grace-period=0")
    heir = _create(product, sharing("heir", fraction="1", namespace=namespace, node=node.name))
    wait_until(
        "its claim is kept for its memory",
        lambda: any(claim.get("podGone") for claim in claims_of(product, namespace)),
        timeout_seconds=5,
    )
    product.api.wait("the heir is bound", pod_path(name(heir), namespace), is_bound)
    assert not _lives(product)
    wait_running(product.api, heir)


def _lives(cluster: Cluster) -> bool:
    return cluster.nodes["node-c"].run("pgrep", "-f", "sleep 4242", check=False).returncode == 0


def _reserved(cluster: Cluster, namespace: str) -> list[str]:
    """The nodes on which a namespace's pods have claims, all of them just reserved."""
    claims = list(claims_of(cluster, namespace))
    assert {claim["state"] for claim in claims} <= {"Reserved"}
    gpus = [claim["shape"][0]["gpu"] for claim in claims]
    return [node for node, each in cluster.nodes.items() for gpu in gpus if gpu in each.gpus.uuids]


def _lose_bind(cluster: Cluster, made: Json, node: str) -> None:
    with pytest.raises(ApiError, match=REFUSAL):
        bind(cluster, made, node)
    assert _reserved(cluster, made["metadata"]["namespace"]) == [node]


def test_a_pod_whose_bind_was_lost_is_bound_with_its_old_claim(
    product: Cluster, namespace: str
) -> None:
    with scheduler_still(product):
        made = _create(product, sharing("lost", fraction="0.5", namespace=namespace))
        with lost_binds(product, namespace, "node-b", made):
            _lose_bind(product, made, "node-b")
            [reserved] = claims_of(product, namespace)
        wait_until("binds arrive again", lambda: _binds(product, made, "node-b"))
    running = wait_running(product.api, made)
    assert _told(running) == reserved["shape"][0]["gpu"]


def _binds(cluster: Cluster, made: Json, node: str) -> bool:
    try:
        bind(cluster, made, node)
    except ApiError as err:
        if REFUSAL not in err.message:
            raise
        return False
    return True


def test_a_claim_ends_where_its_pod_is_bound_to_another_node(
    product: Cluster, namespace: str
) -> None:
    with scheduler_still(product):
        made = _create(product, sharing("elsewhere", fraction="0.5", namespace=namespace))
        with lost_binds(product, namespace, "node-b", made):
            _lose_bind(product, made, "node-b")
            bind(product, made, "node-a")
    wait_running(product.api, made)
    wait_until("one claim is left", lambda: len(list(claims_of(product, namespace))) == 1)
    [claim] = claims_of(product, namespace)
    assert claim["shape"][0]["gpu"] in product.nodes["node-a"].gpus.uuids


def test_a_claim_ends_where_its_pod_is_deleted_before_it_is_bound(
    product: Cluster, namespace: str
) -> None:
    with scheduler_still(product):
        made = _create(product, sharing("short", fraction="0.5", namespace=namespace))
        with lost_binds(product, namespace, "node-b", made):
            _lose_bind(product, made, "node-b")
            product.api.delete(pod_path("short", namespace))
            wait_until("it ends", lambda: not list(claims_of(product, namespace)))


def test_a_reservation_whose_bind_never_arrives_ends_by_itself(
    product: Cluster, namespace: str
) -> None:
    with scheduler_still(product):
        made = _create(product, sharing("never", fraction="0.5", namespace=namespace))
        with lost_binds(product, namespace, "node-b", made):
            _lose_bind(product, made, "node-b")
            reserved_at = time.monotonic()
            wait_until(
                "it ends",
                lambda: not list(claims_of(product, namespace)),
                timeout_seconds=RESERVATION_SECONDS + 20,
                pause_seconds=1,
            )
            assert time.monotonic() - reserved_at > RESERVATION_SECONDS - 5
    wait_running(product.api, made)
