# SPDX-License-Identifier: Apache-2.0
"""What a cluster's administrators do around pods that share: limits, quotas, priorities, drains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuslice.contract import names
from gpuslice.sim.observation import is_leaving, name, unscheduled_words
from tests.cluster.harness.client import ApiError, Json, condition, node_path, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.workloads import create_running, wait_running
from tests.cluster.product import namespaced
from tests.cluster.product.serving import wait_serving
from tests.cluster.product.sharing import sharing, template
from tests.cluster.product.witness import Witness, claims_of, wait_no_claims

QUOTA = "requests.nvidia.com/gpu-slice"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def test_a_limit_range_holds_for_what_admission_writes(product: Cluster, namespace: str) -> None:
    """It needs a default of 0: without one, what is the most becomes every container's limit."""
    zero = {names.SLICE_RESOURCE: "0"}
    most = {
        "type": "Container",
        "max": {names.SLICE_RESOURCE: "60"},
        "default": zero,
        "defaultRequest": zero,
    }
    product.api.create(
        f"/api/v1/namespaces/{namespace}/limitranges",
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "most"},
            "spec": {"limits": [most]},
        },
    )
    create_running(product.api, sharing("small", fraction="0.6", namespace=namespace))
    create_running(product.api, sharing("ordinary", namespace=namespace))
    with pytest.raises(ApiError, match=r"maximum nvidia\.com/gpu-slice usage per Container is 60"):
        product.api.create(
            pod_path(namespace=namespace), sharing("big", fraction="0.61", namespace=namespace)
        )


def test_a_quota_counts_slices_and_gives_them_back(product: Cluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    product.api.create(
        path,
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "one-gpu"},
            "spec": {"hard": {QUOTA: "100"}},
        },
    )
    product.api.wait("it counts", f"{path}/one-gpu", lambda found: _used(found) == "0")
    for each in ("first", "second"):
        create_running(product.api, sharing(each, fraction="0.5", namespace=namespace))
    third = sharing("third", fraction="0.1", namespace=namespace)
    with pytest.raises(ApiError, match=f"exceeded quota: one-gpu, requested: {QUOTA}=10"):
        product.api.create(pod_path(namespace=namespace), third)
    product.kubectl("delete", "pod", "first", f"--namespace={namespace}", "--now")
    product.api.wait("it has room", f"{path}/one-gpu", lambda found: _used(found) == "50")
    create_running(product.api, third)


def _used(quota: Json) -> str:
    return str(quota.get("status", {}).get("used", {}).get(QUOTA, ""))


@pytest.fixture
def priority(product: Cluster, namespace: str) -> Iterator[str]:
    """A PriorityClass above all ordinary pods."""
    made = f"high-{namespace}"
    product.api.create(
        PRIORITIES,
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": made},
            "value": 1000,
        },
    )
    yield made
    product.api.delete(f"{PRIORITIES}/{made}")


def test_a_pod_of_higher_priority_takes_the_gpu_of_one_of_the_same_share(
    product: Cluster, namespace: str, priority: str
) -> None:
    low = [
        create_running(
            product.api, sharing(f"low-{n}", fraction="1", namespace=namespace, node="node-a")
        )
        for n in range(2)
    ]
    high = sharing(
        "high",
        fraction="1",
        namespace=namespace,
        node="node-a",
        spec={"priorityClassName": priority},
    )
    running = create_running(product.api, high)
    pods = product.api.items(pod_path(namespace=namespace))
    left = [pod for pod in pods if name(pod) != "high" and not is_leaving(pod)]
    assert len(left) == 1
    taken = {pod["metadata"]["annotations"][names.GPU_ANNOTATION] for pod in (running, *left)}
    assert len(taken) == len(low)


def test_preemption_for_another_share_is_beyond_the_stock_scheduler(
    product: Cluster, namespace: str, priority: str
) -> None:
    """It counts what each resource gains, and no pod of another share gives back this fit."""
    for n in range(2):
        manifest = sharing(f"low-{n}", fraction="1", namespace=namespace, node="node-a")
        create_running(product.api, manifest)
    high = sharing(
        "high",
        fraction="0.5",
        namespace=namespace,
        node="node-a",
        spec={"priorityClassName": priority},
    )
    product.api.create(pod_path(namespace=namespace), high)
    waiting = product.api.wait(
        "it waits, and it is said why",
        pod_path("high", namespace),
        lambda found: "Preemption is not helpful" in unscheduled_words(found),
    )
    assert "Insufficient gpuslice.dev/fit-0.5" in unscheduled_words(waiting)
    assert len(Witness(product).check().running()) == 2


def test_a_drained_nodes_shares_move_to_the_others(product: Cluster, namespace: str) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "moved", "namespace": namespace},
        "spec": {
            "replicas": 6,
            "selector": {"matchLabels": {"app": "moved"}},
            "template": template(sharing("moved", fraction="0.5", labels={"app": "moved"})),
        },
    }
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    product.api.create(path, deployment)

    def all_run(found: Json) -> bool:
        return bool(found["status"].get("readyReplicas") == 6)

    product.api.wait("all run", f"{path}/moved", all_run)
    pods = product.api.items(pod_path(namespace=namespace))
    drained = pods[0]["spec"]["nodeName"]
    try:
        product.kubectl(
            *("drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--force"),
            "--timeout=90s",
        )
        product.api.wait("all run elsewhere", f"{path}/moved", all_run)
        moved = product.api.items(pod_path(namespace=namespace))
        assert drained not in {pod["spec"]["nodeName"] for pod in moved}
        seen = Witness(product).check()
        ledger = next(each for each in seen.gpu_nodes if name(each) == drained)
        assert not ledger["status"].get("claims")
    finally:
        product.kubectl("uncordon", drained)
    webhook = "/apis/apps/v1/namespaces/gpuslice/deployments/gpuslice-webhook"
    product.api.wait("the webhook is whole", webhook, lambda found: condition(found, "Available"))
    wait_serving(product)


def test_a_deleted_namespace_leaves_room_for_others(product: Cluster, namespace: str) -> None:
    doomed = namespaced.create(product, "doomed")
    for n in range(2):
        manifest = sharing(f"full-{n}", fraction="1", namespace=doomed, node="node-b")
        create_running(product.api, manifest)
    product.api.create(
        pod_path(namespace=doomed), sharing("waits", fraction="1", namespace=doomed, node="node-b")
    )
    heir = sharing("heir", fraction="0.75", namespace=namespace, node="node-b")
    product.api.create(pod_path(namespace=namespace), heir)
    product.kubectl("delete", "namespace", doomed, "--timeout=90s")
    wait_no_claims(product, doomed)
    wait_running(product.api, heir, timeout_seconds=10)
    [claim] = claims_of(product, namespace)
    assert claim["pod"]["name"] == "heir"


def test_a_pod_waits_on_a_cordoned_node(product: Cluster, namespace: str) -> None:
    product.kubectl("cordon", "node-c")
    try:
        manifest = sharing("waits", fraction="0.5", namespace=namespace, node="node-c")
        product.api.create(pod_path(namespace=namespace), manifest)
        product.api.wait(
            "it waits", pod_path("waits", namespace), lambda found: unscheduled_words(found) != ""
        )
    finally:
        product.kubectl("uncordon", "node-c")
    product.api.wait("node-c is open", node_path("node-c"), lambda n: "taints" not in n["spec"])
    wait_running(product.api, manifest)
