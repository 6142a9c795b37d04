# SPDX-License-Identifier: Apache-2.0
"""The webhook is away; a node reboots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import pytest

from gpuslice.contract import names
from gpuslice.sim.observation import Observation, name, phase, wish
from gpuslice.sim.promises import safety
from tests.cluster.harness.client import Api, ApiError, Json, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.paths import say
from tests.cluster.harness.waiting import wait_until
from tests.cluster.harness.workloads import container, create_running, delete_now, pod
from tests.cluster.product import disturbances
from tests.cluster.product.serving import SLICES_PER_GPU, wait_serving
from tests.cluster.product.sharing import sharing, template
from tests.cluster.product.witness import CHECKPOINT, Witness, claims_of

WEBHOOK = "/apis/apps/v1/namespaces/gpuslice/deployments/gpuslice-webhook"
WEBHOOK_PODS = "/api/v1/namespaces/gpuslice/pods"
NODE = "node-c"
GATE = "test.gpuslice.dev/later"
BACK_SECONDS = 20


def _scale_webhook(cluster: Cluster, replicas: int) -> None:
    cluster.api.patch(f"{WEBHOOK}/scale", {"spec": {"replicas": replicas}})


def _remove_webhook(cluster: Cluster) -> None:
    _scale_webhook(cluster, 0)
    wait_until("no webhook is left", lambda: not cluster.api.items(WEBHOOK_PODS))
    wait_until("the API server finds none", lambda: _refusal(cluster.api) is not None)


def _refusal(api: Api) -> str | None:
    """What the API server says to a new sharing pod, by dry run; None where it takes it."""
    try:
        api.create(f"{pod_path()}?dryRun=All", sharing("probe", fraction="0.5"))
    except ApiError as err:
        return err.message
    return None


@pytest.fixture
def later(product: Cluster, namespace: str) -> list[Json]:
    """Pods that have been admitted, and that no scheduler has looked at yet."""
    return [
        product.api.create(
            pod_path(namespace=namespace),
            sharing(
                f"later-{number}",
                fraction=part,
                namespace=namespace,
                node=NODE,
                spec={"schedulingGates": [{"name": GATE}]},
            ),
        )
        for number, part in enumerate(("0.6", "0.6", "0.8"))
    ]


@pytest.fixture
def running(product: Cluster, namespace: str) -> Json:
    """A share that runs all the while, elsewhere than the ones that come later."""
    manifest = sharing("running", fraction="0.5", namespace=namespace, node="node-b")
    return create_running(product.api, manifest)


@pytest.fixture
def no_webhook(product: Cluster, later: list[Json], running: Json) -> Iterator[None]:
    """Nobody answers the API server's calls; what is admitted, was so before."""
    _remove_webhook(product)
    yield
    _scale_webhook(product, 2)
    wait_serving_admission(product)


def wait_serving_admission(cluster: Cluster) -> None:
    """Wait until both replicas of the webhook are ready, and pods are admitted."""
    cluster.kubectl(
        *("rollout", "status", "deployment/gpuslice-webhook", "--namespace=gpuslice"),
        "--timeout=90s",
    )
    wait_until("sharing pods are admitted", lambda: _refusal(cluster.api) is None)


@pytest.mark.usefixtures("no_webhook")
def test_without_the_webhook_only_new_sharing_pods_are_refused(
    product: Cluster, namespace: str, later: list[Json], running: Json
) -> None:
    api = product.api
    ordinary = create_running(api, pod("ordinary", namespace=namespace))
    with pytest.raises(ApiError) as refused:
        api.create(
            pod_path(namespace=namespace),
            sharing("refused", fraction="0.5", namespace=namespace),
        )
    assert "failed calling webhook" in refused.value.message
    assert "gpuslice-webhook" in refused.value.message
    say(f"\n  refused at CREATE: {refused.value.message}")

    for each in later:
        api.patch(pod_path(name(each), namespace), {"spec": {"schedulingGates": None}})
    seen = _come_to_rest(product, later)
    outcomes = {name(each): _outcome(seen, each) for each in later}
    say(f"  admitted before, bound without the arbiter: {outcomes}")
    assert sum(outcome == "Running" for outcome in outcomes.values()) >= 2
    for each in later:
        if outcomes[name(each)] == "Failed":
            say(f"  {seen.pod(name(each))['status']['message']}")
            assert not _fits(seen, each), f"{name(each)} failed, and fits: {outcomes}"
            delete_now(api, each)
    assert container(api.get(pod_path("running", namespace))) == container(running)
    delete_now(api, ordinary)


def _outcome(seen: Observation, pod: Json) -> str:
    return phase(seen.pod(name(pod)))


def _come_to_rest(cluster: Cluster, pods: list[Json]) -> Observation:
    """Wait until each pod runs, has failed, or is told that there is no room for it."""
    witness = Witness(cluster)
    found: list[Observation] = []

    def at_rest() -> bool:
        found[:] = [witness.observe()]
        return all(_is_at_rest(found[0].pod(name(pod))) for pod in pods)

    wait_until("the pods come to rest", at_rest, seen=lambda: [_state(found[0], p) for p in pods])
    (seen,) = found
    assert not list(safety.overlapping(seen, SLICES_PER_GPU))
    return seen


def _state(seen: Observation, pod: Json) -> object:
    return name(pod), seen.pod(name(pod)).get("status")


def _is_at_rest(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    waits = any(each.get("reason") == "Unschedulable" for each in conditions)
    annotated = names.GPU_ANNOTATION in pod["metadata"].get("annotations", {})
    return phase(pod) == "Failed" or (phase(pod) == "Running" and annotated) or waits


def _fits(seen: Observation, pod: Json) -> bool:
    """Whether some GPU of the node has room for a pod beside the pods that run there."""
    asked = wish(pod)
    assert asked is not None
    return any(
        sum(
            (Fraction(w.fraction or 0) for p in seen.running() if gpu.uuid in seen.gpus_of(p)
             if (w := wish(p)) is not None),
            Fraction(0),
        ) + Fraction(asked.fraction or 0) <= 1
        for gpu in seen.gpus
        if gpu.node == NODE
    )  # fmt: skip


def test_after_a_reboot_a_deployment_runs_again_and_bare_pods_have_failed(
    product: Cluster, namespace: str
) -> None:
    """It is kubelet's rule: no plugin is there yet when it looks at the pods of before."""
    api, node = product.api, product.nodes[NODE]
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    shared = template(
        sharing("app", fraction="0.5", labels={"app": "shared"}, node=NODE, namespace=namespace)
    )
    api.create(
        deployments,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "app", "namespace": namespace},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "shared"}},
                "template": shared,
            },
        },
    )
    bare = create_running(api, sharing("bare", fraction="0.4", namespace=namespace, node=NODE))
    api.wait("both run", f"{deployments}/app", _has_ready(2))
    before = {name(each) for each in _pods_of_app(api, namespace)}

    node.reboot()
    back_at = time.monotonic()
    wait_until(
        "the Deployment's new pods run",
        lambda: sum(_runs_anew(each, before) for each in _pods_of_app(api, namespace)) == 2,
        timeout_seconds=90,
        seen=lambda: [(name(p), p["status"]) for p in _pods_of_app(api, namespace)],
    )
    seconds = time.monotonic() - back_at
    ended = api.get(pod_path("bare", namespace))["status"]
    say(f"\n  {seconds:.0f} s after the reboot both run; the bare pod: {ended['phase']}, "
        f"{ended.get('reason')}: {ended.get('message')}")  # fmt: skip
    assert seconds < BACK_SECONDS
    assert (ended["phase"], ended["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert "bare" not in {claim["pod"]["name"] for claim in claims_of(product, namespace)}
    delete_now(api, bare)
    for each in _pods_of_app(api, namespace):
        if phase(each) == "Failed":
            delete_now(api, each)
    wait_serving(product, NODE)
    disturbances.wait_back(product, node)


def test_a_lost_checkpoint_of_kubelet_frees_no_gpu(product: Cluster, namespace: str) -> None:
    """The ledger knows what kubelet has forgotten: no GPU has room for a third pod."""
    api, node = product.api, product.nodes[NODE]
    running = [
        create_running(
            api, sharing(f"running-{number}", fraction="0.6", namespace=namespace, node=NODE)
        )
        for number in range(node.gpus.count)
    ]
    claims = sorted(map(str, claims_of(product, namespace)))
    node.kubelet.stop()
    node.run("rm", CHECKPOINT)
    node.start_kubelet()
    disturbances.wait_back(product, node)
    small = create_running(api, sharing("small", fraction="0.3", namespace=namespace, node=NODE))
    big = api.create(
        pod_path(namespace=namespace),
        sharing("big", fraction="0.6", namespace=namespace, node=NODE),
    )
    api.wait("there is no room for it", pod_path("big", namespace), _is_at_rest)
    assert not api.get(pod_path("big", namespace))["spec"].get("nodeName")
    assert claims == sorted(
        str(claim) for claim in claims_of(product, namespace) if claim["pod"]["name"] != "small"
    )
    for each in running:
        now = api.get(pod_path(name(each), namespace))
        assert container(now)["containerID"] == container(each)["containerID"]
    for each in (big, small, *running):  # kubelet's checkpoint doesn't have them: no use comparing
        delete_now(api, each)


def _has_ready(count: int) -> Callable[[Json], bool]:
    return lambda found: found["status"].get("readyReplicas", 0) == count


def _pods_of_app(api: Api, namespace: str) -> list[Json]:
    return api.items(pod_path(namespace=namespace), labels="app=shared")


def _runs_anew(pod: Json, before: set[str]) -> bool:
    return name(pod) not in before and phase(pod) == "Running"
