# SPDX-License-Identifier: Apache-2.0
"""The cluster itself, before anything of ours is on it: what a real one does, this one does."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

import pytest

from tests.cluster.harness import network, nodeconfig
from tests.cluster.harness.client import Api, ApiError, Json, condition, node_path, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.waiting import wait_until
from tests.cluster.harness.workloads import container, create_running, delete_now, pod


def test_all_nodes_are_ready_within_a_minute(cluster: Cluster, api: Api) -> None:
    assert cluster.up_seconds < 60
    nodes = {node["metadata"]["name"]: node for node in api.items(node_path())}
    assert sorted(cluster.nodes) == sorted(nodes)
    assert all(condition(node, "Ready") for node in nodes.values())


def test_every_node_runs_the_asked_kubernetes(cluster: Cluster, api: Api) -> None:
    versions = {node["status"]["nodeInfo"]["kubeletVersion"] for node in api.items(node_path())} | {
        api.get("/version")["gitVersion"]
    }
    assert {f"v{cluster.kube_version}"} == versions


def test_an_image_without_tag_is_really_pulled(cluster: Cluster, api: Api) -> None:
    running = create_running(api, pod("pulled"))
    assert container(running)["image"] == "docker.io/library/ubuntu:latest"
    query = f"?fieldSelector=involvedObject.name=pulled,involvedObject.uid={_uid(running)}"
    events = api.items(f"/api/v1/namespaces/default/events{query}")
    assert any(
        event["message"].startswith('Successfully pulled image "ubuntu"') for event in events
    )
    delete_now(api, running)


def _uid(obj: Json) -> str:
    return str(obj["metadata"]["uid"])


def test_logs_come_back(cluster: Cluster, api: Api) -> None:
    running = create_running(api, pod("talker", command=("sh", "-c", "echo here; sleep infinity")))
    assert cluster.kubectl("logs", "talker").stdout == "here\n"
    delete_now(api, running)


def test_exec_runs_in_the_pod(cluster: Cluster, api: Api) -> None:
    running = create_running(api, pod("host"))
    shown = cluster.kubectl("exec", "host", "--", "sh", "-c", "hostname; echo $HOSTNAME").stdout
    assert shown.split() == ["host", "host"]
    delete_now(api, running)


def test_pods_of_different_nodes_reach_each_other_and_a_service(cluster: Cluster, api: Api) -> None:
    """From a pod on each node, the server's own included, and from where the API server is."""
    manifest = pod(
        "server",
        command=("sh", "-c", "echo served > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"),
        node="node-a",
        labels={"app": "server"},
    )
    server = create_running(api, manifest)
    service = api.create(
        "/api/v1/namespaces/default/services",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "server"},
            "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    )
    address = service["spec"]["clusterIP"]
    ask = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | busybox nc {address} 80 | tail -n 1"
    clients = [create_running(api, pod(f"client-{node}", node=node)) for node in cluster.nodes]

    def answers() -> list[str]:
        names = [client["metadata"]["name"] for client in clients]
        command = ("--", "sh", "-c", ask)
        return [cluster.kubectl("exec", name, *command, check=False).stdout for name in names]

    wait_until(
        "the Service answers on every node",
        lambda: answers() == ["served\n"] * len(clients),
        seen=answers,
    )
    assert cluster.namespaces.run("sh", "-c", ask).stdout == "served\n"
    api.delete("/api/v1/namespaces/default/services/server")
    for each in (server, *clients):
        delete_now(api, each)


def test_a_pod_reaches_the_api_server_by_its_service(cluster: Cluster, api: Api) -> None:
    running = create_running(api, pod("inside"))
    command = (
        "ls /var/run/secrets/kubernetes.io/serviceaccount && "
        'echo | nc -w 5 "$KUBERNETES_SERVICE_HOST" "$KUBERNETES_SERVICE_PORT" > /dev/null && '
        "echo reached $KUBERNETES_SERVICE_HOST"
    )
    shown = cluster.kubectl("exec", "inside", "--", "sh", "-c", command).stdout.splitlines()
    assert ["ca.crt", "namespace", "token", f"reached {network.API_SERVICE}"] == shown
    delete_now(api, running)


def test_deployments_and_jobs_have_their_controllers(cluster: Cluster, api: Api) -> None:
    cluster.kubectl("create", "deployment", "web", "--image=ubuntu", "--", "sleep", "infinity")
    cluster.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=60s")
    cluster.kubectl("create", "job", "once", "--image=ubuntu", "--", "true")
    cluster.kubectl("wait", "job/once", "--for=condition=Complete", "--timeout=60s")
    cluster.kubectl("delete", "deployment/web", "job/once", "--wait=false")


def test_a_kubelet_may_not_change_another_node(cluster: Cluster) -> None:
    kubelet = cluster.client("system:node:node-a", organization="system:nodes")
    kubelet.patch(node_path("node-a"), {"metadata": {"labels": {"mine": "1"}}})
    with pytest.raises(ApiError) as refused:
        kubelet.patch(node_path("node-b"), {"metadata": {"labels": {"mine": "1"}}})
    assert refused.value.status == HTTPStatus.FORBIDDEN


def test_a_kubelet_answers_nobody_it_does_not_know(cluster: Cluster) -> None:
    address = cluster.nodes["node-a"].address
    script = (
        "import ssl, urllib.request as r; c = ssl._create_unverified_context()\n"
        f"r.urlopen('https://{address}:10250/pods', context=c)"
    )
    answer = cluster.namespaces.run("python3", "-c", script, check=False)
    assert "HTTP Error 401: Unauthorized" in answer.stderr


def test_a_cordoned_node_gets_no_pods(cluster: Cluster, api: Api) -> None:
    cluster.kubectl("cordon", "node-a")
    refused = api.create(pod_path(), pod("nowhere", node="node-a"))
    api.wait("it is unschedulable", pod_path("nowhere"), _is_unschedulable)
    cluster.kubectl("uncordon", "node-a")
    api.wait("it runs", pod_path("nowhere"), lambda found: condition(found, "Ready"))
    delete_now(api, refused)


def _is_unschedulable(found: Json) -> bool:
    conditions = found["status"].get("conditions", [])
    return any(item.get("reason") == "Unschedulable" for item in conditions)


def test_each_node_has_its_gpus_where_the_driver_is_looked_for(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        gpus = node.gpus
        library = next(gpus.driver_root.rglob("libnvidia-ml.so.1"))
        inside = Path(nodeconfig.DRIVER_ROOT) / library.relative_to(gpus.driver_root)
        machine = inside.with_name(gpus.root.machine_file.name)
        assert all(uuid in node.run("cat", machine).stdout for uuid in gpus.uuids)
        node.run("test", "-s", inside)
        devices = node.run("ls", "/dev").stdout.split()
        assert {"nvidia0", "nvidia1", "nvidiactl"} == {name for name in devices if "nvidia" in name}


def test_a_gpu_can_be_broken_while_its_node_runs(cluster: Cluster) -> None:
    node = cluster.nodes["node-b"]
    library = node.gpus.root.library.relative_to(node.gpus.driver_root)
    count = (
        "import ctypes; n = ctypes.CDLL("
        f"'{nodeconfig.DRIVER_ROOT}/{library}'); n.nvmlInit_v2(); h = ctypes.c_void_p()\n"
        "print(n.nvmlDeviceGetHandleByUUID(b'%s', ctypes.byref(h)))"
    )
    ask = ("python3", "-c", count % node.gpus.uuids[0])
    before = node.run(*ask).stdout
    node.gpus.root.lose(node.gpus.uuids[0])
    during = node.run(*ask).stdout
    node.gpus.root.lose(node.gpus.uuids[0], lost=False)
    assert (before, during, node.run(*ask).stdout) == ("0\n", "15\n", "0\n")
