# SPDX-License-Identifier: Apache-2.0
"""A whole embedded kubelet with its API server, and what a user does and sees there."""

from __future__ import annotations

from typing import Any

import grpc

from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import NotFoundError
from gpuslice.runtime.kube.resources import NODES, PODS
from gpuslice.sim.kubelet.kubelet import Kubelet
from gpuslice.sim.kubelet.timings import Timings
from protos.podresources.v1 import api_pb2, api_pb2_grpc
from tests.wire.sim.toyplugin import RESOURCE, build_pod, dial, eventually

FIT = "gpuslice.dev/fit-0.5"
QUICK = Timings(
    status_interval_seconds=0.05,
    push_on_change=True,
    start_seconds=0.01,
    stop_seconds=0.01,
    kill_seconds=0.5,
    speed=100,
)


class World:
    """An API server, one kubelet, and a user."""

    def __init__(self, client: KubeClient, kubelet: Kubelet) -> None:
        self.client = client
        self.kubelet = kubelet

    def run(self, name: str, count: int = 1, *, words: str = "infinity", **more: Any) -> None:
        """Create a pod that sleeps, and bind it."""
        pod = build_pod(name, count, **{"restartPolicy": "Never"} | more)
        del pod["metadata"]["uid"]
        for each in (*pod["spec"]["initContainers"], *pod["spec"]["containers"]):
            each.setdefault("image", "ubuntu")
        pod["spec"]["containers"][0]["args"] = ["sleep", words]
        self.client.bind(self.client.create(PODS, pod), "node-a")

    def pod(self, name: str) -> dict[str, Any]:
        return self.client.get(PODS, name, namespace="default")

    def uid(self, name: str) -> str:
        return str(self.pod(name)["metadata"]["uid"])

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"].get("phase"))

    def exists(self, name: str) -> bool:
        try:
            self.pod(name)
        except NotFoundError:
            return False
        return True

    def becomes(self, name: str, phase: str) -> None:
        eventually(lambda: self.phase(name) == phase)

    def node(self) -> dict[str, Any]:
        return self.client.get(NODES, "node-a")

    def amounts(self, resource: str = RESOURCE) -> tuple[str | None, str | None]:
        status = self.node()["status"]
        return status["capacity"].get(resource), status["allocatable"].get(resource)

    def publish(self, resource: str, count: int) -> None:
        amounts = {resource: str(count)}
        patch = {"status": {"capacity": amounts, "allocatable": amounts}}
        self.client.patch(NODES, "node-a", patch, status=True)

    def sees(self, resource: str, count: int) -> None:
        """Wait until kubelet's own copy of the Node has an amount."""
        eventually(
            lambda: self.kubelet._node_copy()["status"]["allocatable"].get(resource) == str(count)
        )

    def processes(self) -> list[str]:
        return sorted(name for _, _, name, _ in self.kubelet.processes())

    def knows(self, name: str) -> bool:
        """Whether PodResources Get knows a pod."""
        with dial(self.kubelet.bare.pod_resources_socket) as channel:
            request = api_pb2.GetPodResourcesRequest(pod_name=name, pod_namespace="default")
            try:
                api_pb2_grpc.PodResourcesListerStub(channel).Get(request, timeout=5)
            except grpc.RpcError as err:
                if "not found" in str(err.details()):
                    return False
                raise
            return True
