# SPDX-License-Identifier: Apache-2.0
"""Pods through a real API call, a real TLS connection and the real process."""

from __future__ import annotations

import pytest

from gpuslice.runtime.kube.errors import ConflictError, InvalidError
from gpuslice.runtime.kube.resources import PODS
from tests.wire.webhook.conftest import Site
from tests.wire.webhook.rig import build_pod, post, review_of

SLICES = "nvidia.com/gpu-slice"


def test_kais_manifest_becomes_a_sharing_pod_of_the_default_scheduler(site: Site) -> None:
    pod = site.cluster.create_pod("kai", {"gpu-fraction": "0.5"}, schedulerName="kai-scheduler")
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {SLICES: "50", "gpuslice.dev/fit-0.5": "1"}
    assert resources["requests"] == resources["limits"]
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert pod["metadata"]["labels"]["gpuslice.dev/share"] == "0.5"


def test_a_wrong_pod_is_refused_with_the_fix(site: Site) -> None:
    with pytest.raises(InvalidError, match="gpu-fraction-num-devices") as refusal:
        site.cluster.create_pod("wrong", {"gpu-fraction": "1.5"})
    assert refusal.value.code == 422


def test_a_pod_that_was_printed_and_changed_is_admitted_anew(site: Site) -> None:
    pod = site.cluster.create_pod("again", {"gpu-fraction": "0.5"})
    about = pod["metadata"]
    copy = {
        **pod,
        "metadata": {
            "name": "again-2",
            "namespace": "default",
            "labels": about["labels"],
            "annotations": {"gpu-fraction": "0.25", "gpuslice.dev/gpu": "GPU-x"},
        },
    }
    after = site.cluster.client.create(PODS, copy)
    limits = after["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {SLICES: "25", "gpuslice.dev/fit-0.25": "1"}
    assert "gpuslice.dev/gpu" not in after["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        pytest.param("/admit/pods", b"{", 400, id="no JSON"),
        pytest.param("/admit/pods", b"{}", 400, id="no review"),
        pytest.param("/admit/pods", review_of({}, kind={"kind": "Secret"}), 400, id="no pod"),
        pytest.param("/admit/pods", review_of({"metadata": []}), 400, id="a list as metadata"),
        pytest.param("/admit/pods", b"[" * 100_000, 400, id="deep"),
        pytest.param("/admit/pods", b" " * (8 * 2**20 + 1), 413, id="too large"),
        pytest.param("/nowhere", b"{}", 404, id="no such path"),
    ],
)
def test_a_wrong_request_is_a_4xx_and_the_next_one_is_served(
    site: Site, path: str, body: bytes, code: int
) -> None:
    connection = site.webhook.connect()
    answer = post(connection, path, body)
    answer.read()
    assert answer.status == code
    connection.close()
    connection = site.webhook.connect()
    answer = post(connection, "/admit/pods", review_of(build_pod("p", {"gpu-fraction": "0.5"})))
    assert answer.status == 200
    assert b'"allowed":true' in answer.read()
    connection.close()


def test_decisions_are_counted(site: Site) -> None:
    with pytest.raises(InvalidError):
        site.cluster.create_pod("counted", {"gpu-fraction": "x"})
    _, text = site.webhook.status("/metrics")
    assert 'gpuslice_admission_requests_total{decision="denied",endpoint="pods"}' in text


def test_a_claim_reaches_ledger_and_pod_in_the_same_bind(site: Site) -> None:
    site.cluster.add_node("node-e2e", gpus=2)
    client = site.cluster.client
    pods = [
        site.cluster.create_pod(f"e2e-{number}", {"gpu-fraction": "0.5"}) for number in range(5)
    ]
    for pod in pods[:4]:
        client.bind(pod, "node-e2e")
    with pytest.raises(ConflictError, match=r"no single GPU on node node-e2e .*largest free: 0"):
        client.bind(pods[4], "node-e2e")
    shapes = {}
    for claim in site.cluster.claims("node-e2e"):
        (part,) = claim["shape"]
        shapes[claim["pod"]["name"]] = (part["gpu"], part["memoryMiB"], part["slices"])
    assert sorted(gpu for gpu, _, _ in shapes.values()) == [
        "GPU-node-e2e-0",
        "GPU-node-e2e-0",
        "GPU-node-e2e-1",
        "GPU-node-e2e-1",
    ]
    for pod in pods[:4]:
        name = pod["metadata"]["name"]
        bound = client.get(PODS, name, namespace="default")
        assert bound["spec"]["nodeName"] == "node-e2e"
        annotations = bound["metadata"]["annotations"]
        assert (
            annotations["gpuslice.dev/gpu"],
            annotations["gpuslice.dev/memory-mib"],
            annotations["gpuslice.dev/slices"],
        ) == tuple(map(str, shapes[name]))
