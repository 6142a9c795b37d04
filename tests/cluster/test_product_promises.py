# SPDX-License-Identifier: Apache-2.0
"""The demo's promises on a real Kubernetes: the sharing manifests, and again without a scheduler.

The checks are the demo's own, and so is the order of events; what they look at comes from kubelets'
checkpoints, from `env` in the containers, and from the API server.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.contract import names
from gpuslice.sim.observation import Observation, name
from gpuslice.sim.promises import arrivals, environment, halves, ledger, memory, safety
from tests.cluster.conftest import LOGS, kube_version
from tests.cluster.harness import deployment
from tests.cluster.harness.client import Api, Json, node_path, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.deployment import GPU_NODE_LABEL
from tests.cluster.harness.gpus import plan
from tests.cluster.harness.paths import REPOSITORY
from tests.cluster.product import namespaced
from tests.cluster.product.serving import wait_serving
from tests.cluster.product.sharing import sharing
from tests.cluster.product.witness import Witness

EXAMPLES = REPOSITORY / "deploy" / "examples"
SCHEDULERS = pytest.mark.parametrize(
    "scheduler", ["kai-scheduler", ""], ids=["as-they-are", "without-schedulerName"]
)
END = "while [ ! -e /tmp/end ]; do sleep 0.1; done"


@pytest.fixture(scope="module")
def two_nodes(able: None) -> Iterator[Cluster]:
    """Two nodes with one GPU each, as the demo has them; a third joins."""
    plans = (plan("node-a", gpu_count=1), plan("node-b", gpu_count=1))
    with Cluster(plans, kube_version=kube_version(), keep_logs=LOGS / "promises") as made:
        made.deploy(*deployment.adopted_kai())
        wait_serving(made)
        yield made


@SCHEDULERS
def test_promises_1_2_3_and_5_hold(
    two_nodes: Cluster, request: pytest.FixtureRequest, tmp_path: Path, scheduler: str
) -> None:
    cluster = two_nodes
    witness = Witness(cluster, exec_environments=True)
    with namespaced.namespace(cluster, request.node.name) as namespace:
        _apply(cluster, EXAMPLES / "crds", namespace)
        _apply(cluster, EXAMPLES / "queues.yaml", namespace)
        fractions, memories = (
            _manifests(EXAMPLES / file, scheduler, tmp_path)
            for file in ("gpu-fraction-pods.yaml", "gpu-memory-pods.yaml")
        )

        # Promise 1: four run, two on each GPU; the fifth waits, and it is said why.
        _apply(cluster, fractions, namespace)
        seen = witness.settle(
            lambda seen: halves.faults(_in_service(cluster, seen), _why(cluster, seen))
        )

        # Promise 2: what each container sees.
        witness.settle(environment.faults)

        # Promise 3: a third node, three shares of memory, and a half that goes.
        fifth = name(safety.waiting(seen)[0])
        _third_node_joins(cluster)
        witness.settle(lambda seen: _not_running(seen, fifth))
        _apply(cluster, memories, namespace)
        witness.settle(lambda seen: memory.faults_while_waiting(seen, fifth, _why(cluster, seen)))
        leaving = next(name(pod) for pod in seen.running() if _is_half(pod))
        cluster.kubectl("delete", "pod", leaving, f"--namespace={namespace}", "--now")
        witness.settle(memory.faults_at_the_end)

        # Promise 5: the ledger at the end.
        witness.settle(ledger.faults)
        witness.settle(environment.faults)
    _third_node_is_closed(cluster)


def _manifests(path: Path, scheduler: str, folder: Path) -> Path:
    """The file as it is, or a copy of it without `schedulerName`."""
    documents = list(yaml.safe_load_all(path.read_text()))
    assert {each["spec"]["schedulerName"] for each in documents} == {"kai-scheduler"}
    if scheduler:
        return path
    for document in documents:
        del document["spec"]["schedulerName"]
    copy = folder / path.name
    copy.write_text(yaml.safe_dump_all(documents))
    return copy


def _apply(cluster: Cluster, path: Path, namespace: str) -> None:
    cluster.kubectl("apply", f"--filename={path}", f"--namespace={namespace}")


def _third_node_joins(cluster: Cluster) -> None:
    """A new machine; or, the second time, one that was closed till now."""
    if "node-c" in cluster.nodes:
        cluster.kubectl("uncordon", "node-c")
        return
    cluster.add_node(plan("node-c", gpu_count=1))
    cluster.api.patch(node_path("node-c"), {"metadata": {"labels": {GPU_NODE_LABEL: "true"}}})


def _third_node_is_closed(cluster: Cluster) -> None:
    cluster.kubectl("cordon", "node-c")


def _in_service(cluster: Cluster, seen: Observation) -> Observation:
    """The same, with just the GPUs of the nodes that take pods."""
    is_open = {
        node["metadata"]["name"]: not node["spec"].get("unschedulable")
        for node in cluster.api.items(node_path())
    }
    return dataclasses.replace(seen, gpus=tuple(gpu for gpu in seen.gpus if is_open[gpu.node]))


def _why(cluster: Cluster, seen: Observation) -> str:
    """What `gpuslice explain pod` says of the pods that wait."""
    return "".join(
        subprocess.run(
            (
                *(sys.executable, "-m", "gpuslice.cli", "explain", "pod", name(pod)),
                f"--namespace={pod['metadata']['namespace']}",
                f"--kubeconfig={cluster.kubeconfig}",
            ),
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for pod in safety.waiting(seen)
    )


def _not_running(seen: Observation, *expected: str) -> Iterator[str]:
    for missing in sorted(set(expected) - set(map(name, seen.running()))):
        yield f"{missing} doesn't run"


def _is_half(pod: Mapping[str, Any]) -> bool:
    return names.FRACTION in pod["metadata"]["annotations"]


@SCHEDULERS
def test_promise_4_holds_where_a_pod_is_deleted(
    product: Cluster, namespace: str, scheduler: str
) -> None:
    def end(pod: Mapping[str, Any]) -> None:
        product.kubectl("delete", "pod", name(pod), f"--namespace={namespace}", "--now")

    _three_arrive(product, _three(namespace, scheduler, "0.6", "0.6", "0.6"), end=end)


@SCHEDULERS
def test_promise_4_holds_where_a_pod_ends_by_itself(
    product: Cluster, namespace: str, scheduler: str
) -> None:
    def end(pod: Mapping[str, Any]) -> None:
        command = ("--", "touch", "/tmp/end")
        product.kubectl("exec", name(pod), f"--namespace={namespace}", *command)

    _three_arrive(product, _three(namespace, scheduler, "0.6", "0.6", "0.8"), end=end)


def _three(namespace: str, scheduler: str, *fractions: str) -> list[Json]:
    """Pods for the one node with two GPUs."""
    spec = {"schedulerName": scheduler} if scheduler else {}
    return [
        sharing(
            f"big-{fraction.replace('.', '-')}-{number}",
            fraction=fraction,
            namespace=namespace,
            node="node-a",
            command=("sh", "-c", END),
            spec={"restartPolicy": "Never", **spec},
        )
        for number, fraction in enumerate(fractions, start=1)
    ]


def _three_arrive(
    cluster: Cluster, pods: list[Json], *, end: Callable[[Mapping[str, Any]], None]
) -> None:
    api: Api = cluster.api
    path = pod_path(namespace=pods[0]["metadata"]["namespace"])
    with ThreadPoolExecutor(len(pods)) as authors:
        list(authors.map(lambda pod: api.create(path, pod), pods))  # list: errors are raised here
    witness = Witness(cluster)
    arrived = list(map(name, pods))
    seen = witness.settle(lambda seen: arrivals.faults_of_three(seen, arrived))
    waited = name(safety.waiting(seen)[0])
    ending = seen.running()[0]
    freed = seen.gpus_of(ending)
    end(ending)
    witness.settle(lambda seen: arrivals.faults_of_turn(seen, waited, name(ending), freed))
    witness.check()
