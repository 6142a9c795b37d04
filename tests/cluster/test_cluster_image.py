# SPDX-License-Identifier: Apache-2.0
"""The product's image, made without Docker, in a pod under the rules of a hardened cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.harness import product_image
from tests.cluster.harness.client import Api, Json
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.workloads import create_running, delete_now, pod

IMAGE = "example.com/gpuslice:test"
SELF_TEST = """\
import json, ssl, urllib.request
import cryptography.x509, flask, granian, grpc, msgspec, orjson, prometheus_client, pynvml
import structlog, urllib3, watchfiles, yaml
import gpuslice.contract.names, webhook, deviceplugin, protos
from pathlib import Path
folder = Path("/var/run/secrets/kubernetes.io/serviceaccount")
request = urllib.request.Request(
    "https://10.96.0.1/apis/authentication.k8s.io/v1/selfsubjectreviews",
    data=b'{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}',
    headers={"Authorization": "Bearer " + (folder / "token").read_text(),
             "Content-Type": "application/json"},
)
context = ssl.create_default_context(cafile=folder / "ca.crt")
answer = json.load(urllib.request.urlopen(request, context=context))
print(answer["status"]["userInfo"]["username"])
"""


@pytest.fixture
def product(cluster: Cluster, api: Api) -> Iterator[Json]:
    """A pod of the product's image that only waits."""
    product_image.build(cluster.images, (IMAGE,))
    wait = "import threading; threading.Event().wait()"
    manifest = pod("product", spec={"securityContext": {"runAsNonRoot": True}})
    container = manifest["spec"]["containers"][0]
    container |= {
        "image": IMAGE,
        "command": ["python3", "-c", wait],
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    made = create_running(api, manifest)
    yield made
    delete_now(api, made)


def test_it_has_all_it_needs_and_in_cluster_credentials_work(
    cluster: Cluster, product: Json
) -> None:
    done = cluster.kubectl("exec", "product", "--", "python3", "-c", SELF_TEST)
    assert done.stdout == "system:serviceaccount:default:default\n"


def test_it_runs_as_nobody_in_particular_and_has_no_shell(cluster: Cluster, product: Json) -> None:
    identity = "import os; print(os.getuid(), os.getgid())"
    done = cluster.kubectl("exec", "product", "--", "python3", "-c", identity)
    assert done.stdout == "65532 65532\n"
    assert cluster.kubectl("exec", "product", "--", "sh", "-c", "true", check=False).returncode


def test_its_command_is_in_the_path(cluster: Cluster, product: Json) -> None:
    assert "gpuslice" in cluster.kubectl("exec", "product", "--", "gpuslice", "--version").stdout


def test_nothing_is_compiled_when_it_starts(cluster: Cluster, product: Json) -> None:
    """Each source has its byte code beside it, made when the image was."""
    command = (
        "import grpc, gpuslice, json, os; "
        "print([m.__cached__ for m in (grpc, gpuslice, json) if not os.path.exists(m.__cached__)])"
    )
    assert cluster.kubectl("exec", "product", "--", "python3", "-c", command).stdout == "[]\n"
