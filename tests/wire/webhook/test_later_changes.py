# SPDX-License-Identifier: Apache-2.0
"""What admission and the arbiter wrote stays, whoever is away; nothing else of a pod depends on us.

The policies are the deployed ones, on an API server without any webhook.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.sim.apiserver.server import ApiServer
from tests.wire.sim.apiserver.asking import NODES, PODS, Client

POLICIES = Path(__file__).parents[3] / "deploy" / "manifests" / "60-admission-policies.yaml"
GROUP = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
AGENT = "system:serviceaccount:gpuslice-nodes:gpuslice-device-plugin"
SLICES = "nvidia.com/gpu-slice"

Json = dict[str, Any]


def build_admitted(name: str) -> Json:
    amounts = {SLICES: "50", "gpuslice.dev/fit-0.5": "1", "cpu": "1"}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": "train", "gpuslice.dev/share": "0.5"},
            "annotations": {"gpu-fraction": "0.5", "gpuslice.dev/gpu": "GPU-1"},
        },
        "spec": {
            "containers": [
                {
                    "name": "train",
                    "image": "ubuntu",
                    "resources": {"limits": amounts, "requests": amounts},
                }
            ]
        },
    }


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer(tls=False) as served:
        client = Client(served.url, served.ca_pem)
        for thing in yaml.safe_load_all(POLICIES.read_text(encoding="utf-8")):
            assert client.post(f"{GROUP}/{PLURALS[thing['kind']]}", thing).code == 201
        assert client.post(PODS, build_admitted("sharing")).code == 201
        plain = {"metadata": {"name": "plain"}, "spec": build_admitted("x")["spec"]}
        plain["spec"]["containers"][0].pop("resources")
        assert client.post(PODS, plain).code == 201
        assert client.post(NODES, {"metadata": {"name": "node-a"}}).code == 201
        client.close()
        yield served


@pytest.fixture
def user(server: ApiServer) -> Iterator[Client]:
    client = Client(server.url, server.ca_pem)
    yield client
    client.close()


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        pytest.param({"labels": {"gpuslice.dev/share": "1"}}, "gpuslice.dev/share", id="label"),
        pytest.param({"labels": {"gpuslice.dev/share": None}}, "gpuslice.dev/share", id="no label"),
        *(
            pytest.param({"annotations": {key: value}}, "create it again", id=f"{key}: {value}")
            for key, value in [
                ("gpu-fraction", "0.9"),
                ("gpu-fraction", None),
                ("gpu-memory", "4000"),
                ("gpu-fraction-num-devices", "2"),
                ("gpu-fraction-container-name", "other"),
                ("gpuslice.dev/gpu-fraction", "0.9"),
                ("gpuslice.dev/gpu-memory", "4000"),
                ("gpuslice.dev/gpu-fraction-num-devices", "2"),
                ("gpuslice.dev/gpu-fraction-container-name", "other"),
            ]
        ),
        *(
            pytest.param({"annotations": {key: "x"}}, "gpuslice's own", id=key)
            for key in ("gpuslice.dev/gpu", "gpuslice.dev/memory-mib", "gpuslice.dev/slices")
        ),
    ],
)
def test_a_users_change_of_what_was_written_is_refused(
    user: Client, metadata: Json, words: str
) -> None:
    said = user.patch(f"{PODS}/sharing", {"metadata": metadata})
    assert said.code == 422
    assert words in said.body["message"]


def test_a_pod_cant_be_given_a_share_later(user: Client) -> None:
    said = user.patch(f"{PODS}/plain", {"metadata": {"labels": {"gpuslice.dev/share": "0.5"}}})
    assert said.code == 422


@pytest.mark.parametrize("name", ["sharing", "plain"])
@pytest.mark.parametrize(
    ("subresource", "change"),
    [
        pytest.param("", {"metadata": {"labels": {"app": "x"}}}, id="another label"),
        pytest.param("", {"metadata": {"annotations": {"note": "x"}}}, id="another annotation"),
        pytest.param("", {"metadata": {"finalizers": ["example.com/x"]}}, id="a finalizer"),
        pytest.param("", {"metadata": {"finalizers": None}}, id="no finalizer"),
        pytest.param("/status", {"status": {"phase": "Running"}}, id="status"),
    ],
)
def test_all_else_can_be_changed_while_no_webhook_is_there(
    user: Client, name: str, subresource: str, change: Json
) -> None:
    said = user.patch(f"{PODS}/{name}{subresource}", change)
    assert said.code == 200, said.text


def test_the_policies_see_no_subresource_but_status() -> None:
    """So resizes, ephemeral containers, evictions and binds go by them.

    A real API server takes labels and annotations with a pod's status: see test_product_security.
    """
    documents = yaml.safe_load_all(POLICIES.read_text(encoding="utf-8"))
    policies = [each for each in documents if each["kind"] == "ValidatingAdmissionPolicy"]
    seen = {
        resource
        for policy in policies
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }
    assert seen == {"pods", "pods/status", "nodes/status", "gpunodes", "gpunodes/status"}
