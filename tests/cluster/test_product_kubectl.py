# SPDX-License-Identifier: Apache-2.0
"""kubectl's ways with manifests of pods that share: what people and pipelines do."""

from __future__ import annotations

import pytest

from gpuslice.contract import names
from gpuslice.sim.observation import name
from tests.cluster.harness.client import Json, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.workloads import create_running, wait_running
from tests.cluster.product.applying import apply, warnings
from tests.cluster.product.serving import GPU_SHARES
from tests.cluster.product.sharing import sharing
from tests.cluster.product.witness import claims_of


def test_a_server_side_dry_run_shows_the_pod_and_leaves_nothing(
    product: Cluster, namespace: str
) -> None:
    manifest = sharing("dry", fraction="0.37", namespace=namespace)
    done = apply(product, manifest, flags=["--dry-run=server", "--output=json"])
    assert '"gpuslice.dev/fit-0.37": "1"' in done.stdout
    assert product.api.items(pod_path(namespace=namespace)) == []
    assert list(claims_of(product, namespace)) == []
    assert "0.37" not in map(name, product.api.items(GPU_SHARES))


@pytest.mark.parametrize("flags", [[], ["--server-side"]], ids=["client-side", "server-side"])
def test_applying_twice_changes_nothing(product: Cluster, namespace: str, flags: list[str]) -> None:
    manifest = sharing("again", fraction="0.5", namespace=namespace)
    apply(product, manifest, flags=flags)
    before = wait_running(product.api, manifest)
    for _ in range(2):
        done = apply(product, manifest, flags=flags)
        assert "pod/again" in done.stdout
        assert warnings(done) == []
    after = product.api.get(pod_path("again", namespace))
    assert before["metadata"]["uid"] == after["metadata"]["uid"]
    assert before["spec"] == after["spec"]
    assert before["metadata"]["annotations"] == after["metadata"]["annotations"]


def test_another_fraction_for_a_running_pod_is_refused_with_the_way(
    product: Cluster, namespace: str
) -> None:
    apply(product, sharing("fixed", fraction="0.5", namespace=namespace))
    changed = sharing("fixed", fraction="0.7", namespace=namespace)
    done = apply(product, changed, check=False)
    assert done.returncode
    assert "Delete the pod and create it again" in done.stderr


def test_a_manifest_as_kubectl_prints_it_is_applied_again(product: Cluster, namespace: str) -> None:
    """With our label, limits and annotations in it; only the node's name has to go."""
    first = create_running(product.api, sharing("copied", fraction="0.5", namespace=namespace))
    told = {names.GPU_ANNOTATION, names.MEMORY_MIB_ANNOTATION, names.SLICES_ANNOTATION}
    assert told <= set(first["metadata"]["annotations"])
    product.kubectl("delete", "pod", "copied", f"--namespace={namespace}", "--now")
    done = apply(product, _printed(first))
    [warning] = warnings(done)
    assert all(key in warning for key in told)
    second = wait_running(product.api, first)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert len(second["spec"]["containers"][0]["resources"]["limits"]) == 2
    [claim] = claims_of(product, namespace)
    assert claim["shape"][0]["gpu"] == second["metadata"]["annotations"][names.GPU_ANNOTATION]


def _printed(pod: Json) -> Json:
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    kept = ("name", "namespace", "labels", "annotations")
    metadata = {key: pod["metadata"][key] for key in kept}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_the_first_of_several_containers_gets_the_gpu_with_a_warning(
    product: Cluster, namespace: str
) -> None:
    manifest = sharing("pair", fraction="0.5", namespace=namespace)
    other = {"name": "other", "image": "ubuntu", "command": ["sleep", "infinity"]}
    manifest["spec"]["containers"].append(other)
    [warning] = warnings(apply(product, manifest))
    assert "container pair gets the GPU" in warning
    assert names.CONTAINER in warning


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({names.FRACTION: "1.5"}, "1.5"),
        ({names.FRACTION: "half"}, "half"),
        ({names.FRACTION: "0.5", names.MEMORY: "4000"}, names.MEMORY),
        ({names.MEMORY: "999999"}, "999999"),
    ],
    ids=["above-one", "no-number", "both-kinds", "more-than-any-gpu"],
)
def test_what_cannot_be_right_is_refused_with_field_and_value(
    product: Cluster, namespace: str, annotations: dict[str, str], said: str
) -> None:
    manifest = sharing("wrong", annotations=annotations, namespace=namespace)
    done = apply(product, manifest, check=False)
    assert done.returncode
    assert said in done.stderr
    assert "metadata.annotations" in done.stderr
