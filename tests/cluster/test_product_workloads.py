# SPDX-License-Identifier: Apache-2.0
"""Every way in which pods come to be, with a share of a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.contract import names
from gpuslice.sim.observation import Observation, name
from tests.cluster.harness.client import Api, ApiError, Json, condition, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.workloads import create_running, wait_running
from tests.cluster.product.sharing import sharing, template
from tests.cluster.product.witness import Witness, claims_of, exec_environment, wait_no_claims

SLEEP = ["sleep", "infinity"]


def _path(group: str, kind: str, namespace: str, name: str = "") -> str:
    return f"/apis/{group}/v1/namespaces/{namespace}/{kind}/{name}".rstrip("/")


def _replicated(kind: str, namespace: str, fraction: str, spec: dict[str, Any]) -> Json:
    made = template(sharing("app", fraction=fraction, labels={"app": "shared"}))
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "app", "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": "shared"}}, "template": made, **spec},
    }


def _has_ready(count: int) -> Any:
    return lambda found: found["status"].get("readyReplicas", 0) == count


def test_a_deployment_runs_and_its_lost_pod_is_replaced(product: Cluster, namespace: str) -> None:
    api, path = product.api, _path("apps", "deployments", namespace)
    api.create(path, _replicated("Deployment", namespace, "0.5", {"replicas": 3}))
    api.wait("all run", f"{path}/app", _has_ready(3))
    lost = name(api.items(pod_path(namespace=namespace))[0])
    product.kubectl("delete", "pod", lost, f"--namespace={namespace}", "--now")
    api.wait_gone(pod_path(lost, namespace))
    api.wait("all run again", f"{path}/app", _has_ready(3))
    assert len(list(claims_of(product, namespace))) == 3


def test_a_deployment_rolls_over_where_old_and_new_do_not_fit_together(
    product: Cluster, namespace: str
) -> None:
    """Six whole GPUs for six replicas: with no surge, each new one gets the GPU of an old one."""
    api, path = product.api, _path("apps", "deployments", namespace)
    strategy = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}}
    manifest = _replicated("Deployment", namespace, "1", {"replicas": 6, "strategy": strategy})
    api.create(path, manifest)
    api.wait("all run", f"{path}/app", _has_ready(6))
    target = ("deployment/app", f"--namespace={namespace}")
    product.kubectl("rollout", "restart", *target)
    product.kubectl("rollout", "status", *target, "--timeout=100s")


def test_a_job_completes_and_leaves_no_claim(product: Cluster, namespace: str) -> None:
    work = template(sharing("work", fraction="0.75", command=("sleep", "0.5")))
    work["spec"]["restartPolicy"] = "Never"
    path = _path("batch", "jobs", namespace)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "namespace": namespace},
        "spec": {"completions": 8, "parallelism": 8, "backoffLimit": 0, "template": work},
    }
    product.api.create(path, job)
    product.api.wait("it completes", f"{path}/job", lambda found: condition(found, "Complete"))
    wait_no_claims(product, namespace)


def test_a_stateful_set_gets_its_share_back_under_the_same_name(
    product: Cluster, namespace: str
) -> None:
    api, path = product.api, _path("apps", "statefulsets", namespace)
    spec = {"replicas": 2, "serviceName": "app"}
    api.create(path, _replicated("StatefulSet", namespace, "0.5", spec))
    api.wait("both run", f"{path}/app", _has_ready(2))
    before = api.get(pod_path("app-0", namespace))["metadata"]["uid"]
    product.kubectl("delete", "pod", "app-0", f"--namespace={namespace}", "--now")
    api.wait(
        "app-0 is there again",
        pod_path("app-0", namespace),
        lambda found: found["metadata"]["uid"] != before and condition(found, "Ready"),
    )
    wait_two = (claim["pod"]["name"] for claim in claims_of(product, namespace))
    assert sorted(wait_two) == ["app-0", "app-1"]


def test_pods_of_a_generated_name_each_get_a_share(product: Cluster, namespace: str) -> None:
    manifest = sharing("unused", fraction="0.25", namespace=namespace)
    del manifest["metadata"]["name"]
    manifest["metadata"]["generateName"] = "generated-"
    path = pod_path(namespace=namespace)
    made = [product.api.create(path, manifest) for _ in range(4)]
    running = [wait_running(product.api, each) for each in made]
    assert len({name(pod) for pod in running}) == 4
    assert all(pod["metadata"]["labels"][names.SHARE_LABEL] == "0.25" for pod in running)


def _limits(pod: Json, group: str, index: int) -> list[str]:
    return sorted(pod["spec"][group][index].get("resources", {}).get("limits", {}))


def test_a_sidecar_gets_the_gpu_where_it_is_named(product: Cluster, namespace: str) -> None:
    sidecar = {"name": "server", "image": "ubuntu", "command": SLEEP, "restartPolicy": "Always"}
    manifest = sharing(
        "main",
        fraction="0.5",
        annotations={names.CONTAINER: "server"},
        namespace=namespace,
        spec={"initContainers": [sidecar]},
    )
    running = create_running(product.api, manifest)
    assert _limits(running, "initContainers", 0) == ["gpuslice.dev/fit-0.5", names.SLICE_RESOURCE]
    assert _limits(running, "containers", 0) == []
    told = running["metadata"]["annotations"][names.GPU_ANNOTATION]
    assert exec_environment(product, running, "server")[names.ENV_VISIBLE_DEVICES] == told
    assert names.ENV_VISIBLE_DEVICES not in exec_environment(product, running, "main")


def test_an_init_container_never_gets_the_gpu(product: Cluster, namespace: str) -> None:
    """It would be killed with its pod by a restart of kubelet."""
    init = {"name": "prepare", "image": "ubuntu", "command": ["true"]}
    spec = {"initContainers": [init]}
    manifest = sharing("main", fraction="0.5", namespace=namespace, spec=spec)
    running = create_running(product.api, manifest)
    assert _limits(running, "initContainers", 0) == []
    assert names.SLICE_RESOURCE in _limits(running, "containers", 0)
    manifest["metadata"] |= {
        "name": "named",
        "annotations": {names.FRACTION: "0.5", names.CONTAINER: "prepare"},
    }
    refused = _refused(product.api, manifest)
    assert "prepare" in refused.message
    assert "an init container that ends before the others start" in refused.message


def test_two_containers_that_ask_for_a_gpu_are_refused_by_name(
    product: Cluster, namespace: str
) -> None:
    slices = {"limits": {names.SLICE_RESOURCE: "20"}}
    containers = [
        {"name": each, "image": "ubuntu", "command": SLEEP, "resources": slices}
        for each in ("train", "serve")
    ]
    manifest = sharing("two", namespace=namespace, spec={"containers": containers})
    refused = _refused(product.api, manifest)
    assert "stands in several containers (train, serve)" in refused.message


def _refused(api: Api, manifest: Json) -> ApiError:
    """How the creation of a pod is refused."""
    with pytest.raises(ApiError) as refused:
        api.create(pod_path(namespace=manifest["metadata"]["namespace"]), manifest)
    assert refused.value.status == 422
    assert api.find(pod_path(name(manifest), manifest["metadata"]["namespace"])) is None
    return refused.value


def _not_running(*expected: str) -> Any:
    def faults(seen: Observation) -> Any:
        return (f"{each} doesn't run" for each in set(expected) - set(map(name, seen.running())))

    return faults


def test_shares_of_different_kinds_run_side_by_side(product: Cluster, namespace: str) -> None:
    """Bare pods, all at once: fractions, memory, and halves of two GPUs."""
    manifests = [
        sharing("third", fraction="0.333", namespace=namespace),
        sharing("memory", memory_mib=5000, namespace=namespace),
        sharing("whole", fraction="1", namespace=namespace),
        sharing(
            "two-halves", fraction="0.5", annotations={names.DEVICES: "2"}, namespace=namespace
        ),
        sharing("tenth", fraction="0.1", namespace=namespace),
    ]
    for manifest in manifests:
        product.api.create(pod_path(namespace=namespace), manifest)
    seen = Witness(product).settle(_not_running(*map(name, manifests)))
    assert len(seen.gpus_of(seen.pod("two-halves"))) == 2
    assert len(seen.gpus_of(seen.pod("whole"))) == 1
