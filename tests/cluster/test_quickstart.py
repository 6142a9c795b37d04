# SPDX-License-Identifier: Apache-2.0
"""The quickstart, word for word, on a cluster of one node; and what `kubectl gpuslice` says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.contract import names
from tests.cluster.conftest import LOGS, kube_version
from tests.cluster.harness import deployment, product_image
from tests.cluster.harness.client import Json, node_path, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.gpus import plan
from tests.cluster.harness.namespaces import environment
from tests.cluster.harness.paths import REPOSITORY
from tests.cluster.product.serving import GPU_SHARES, gpu_node_path, wait_serving

NODE = "node-a"
PAGE = (REPOSITORY / "docs" / "quickstart.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0].strip().splitlines()


@pytest.fixture(scope="module")
def single(able: None) -> Iterator[Cluster]:
    """One node with one GPU, and the image where its runtime finds it: what the page asks for."""
    made = Cluster((plan(NODE, gpu_count=1),), kube_version=kube_version(), keep_logs=LOGS)
    with made as cluster:
        images = deployment.images(deployment.read())
        product_image.build(cluster.images, tuple(images))
        yield cluster


def run(cluster: Cluster, command: str) -> str:
    """Run a command of the page from the repository's folder."""
    program, *arguments = shlex.split(command.replace(" NODE ", f" {NODE} "))
    assert program == "kubectl"
    return cluster.kubectl(*arguments).stdout


def plugin(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `kubectl gpuslice`, which kubectl finds on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment()['PATH']}"
    return subprocess.run(
        [*cluster._binaries.kube("kubectl"), "gpuslice", *arguments],
        env={**environment(), "PATH": path, "KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_quickstart_works_word_for_word_and_the_doctor_agrees(
    single: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    install, label, apply, get = COMMANDS
    run(single, install)
    run(single, label)
    # The page gives them half a minute; a busy machine may need more.
    wait_serving(single, NODE, timeout_seconds=120)
    empty = plugin(single, "doctor")
    assert empty.stdout.startswith("all is well"), empty.stdout + empty.stderr
    is_as_foretold(single)

    run(single, apply)
    for name in ("half-1", "half-2"):
        single.api.wait(
            f"{name} runs",
            pod_path(name, "default"),
            lambda found: found["status"]["phase"] == "Running",
        )
    rows = [line.split() for line in run(single, get).splitlines()[1:]]
    assert [(name, status) for name, status, *_ in rows] == [
        ("half-1", "Running"),
        ("half-2", "Running"),
    ]
    (gpu,) = single.nodes[NODE].gpus.uuids
    assert {uuid for _, _, uuid, _ in rows} == {gpu}

    top = json.loads(plugin(single, "top", "pods", "-o", "json").stdout)
    assert [(each["pod"], each["uuids"]) for each in top["items"]] == [
        ("half-1", gpu),
        ("half-2", gpu),
    ]
    assert "half-1 has 0.5 on node node-a" in plugin(single, "explain", "half-1").stdout
    busy = plugin(single, "doctor")
    assert busy.stdout.startswith("all is well"), busy.stdout + busy.stderr


def is_as_foretold(cluster: Cluster) -> None:
    """What `gpuslice capacity` says of such a node is what the empty node really publishes."""
    (gpu,) = cluster.api.get(gpu_node_path(NODE))["spec"]["gpus"]
    shares = [each["spec"]["share"] for each in cluster.api.items(GPU_SHARES)]
    flags = [flag for share in shares for flag in ("--share", share)]
    size = ["--gpus", "1", "--gpu-memory", str(gpu["memoryMiB"])]
    told = json.loads(plugin(cluster, "capacity", *size, *flags, "-o", "json").stdout)
    foretold = {each["resource"]: str(each["value"]) for each in told["items"]}
    assert ours(cluster.api.get(node_path(NODE))) == foretold


def ours(node: Json) -> dict[str, str]:
    allocatable = node["status"]["allocatable"]
    return {
        key: value
        for key, value in allocatable.items()
        if key == names.SLICE_RESOURCE or key.startswith(names.FIT_PREFIX)
    }


def test_the_doctor_finds_a_second_seller_and_a_webhook_that_is_away(single: Cluster) -> None:
    """Two faults on a real Kubernetes; many more are planted on the embedded one."""
    sold = json.dumps({"status": {"capacity": {"nvidia.com/gpu": "1"}}})
    where = ("patch", "node", NODE, "--subresource=status", "--type=merge")
    single.kubectl(*where, f"--patch={sold}")
    webhook = ("--namespace=gpuslice", "deployment/gpuslice-webhook")
    single.kubectl("scale", *webhook, "--replicas=0")
    # Those that drain still answer.
    pods = ("--namespace=gpuslice", "--selector=app.kubernetes.io/component=webhook")
    single.kubectl("wait", "--for=delete", "pod", *pods, "--timeout=90s")
    single.api.wait(
        "kubelet offers what the other seller has",
        node_path(NODE),
        lambda found: found["status"]["allocatable"].get("nvidia.com/gpu") == "1",
    )
    done = plugin(single, "doctor", "-o", "json")
    found = {each["check"]: each for each in json.loads(done.stdout)["items"]}
    assert done.returncode == 1
    assert found["sold-twice"]["subject"] == f"node/{NODE}"
    assert found["webhook-ready"]["problem"].startswith("0 of 1 replicas are ready")
    assert "failed calling webhook" in found["admission"]["problem"]
