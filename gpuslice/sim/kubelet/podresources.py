# SPDX-License-Identifier: Apache-2.0
"""kubelet's PodResources server: which devices each active pod holds.

Source: Kubernetes v1.36, pkg/kubelet/apis/podresources/server_v1.go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NoReturn

import grpc

from gpuslice.contract import pods
from gpuslice.contract.pods import Json
from gpuslice.sim.kubelet.allocator import DeviceAllocator
from gpuslice.sim.kubelet.quirks import Quirks
from gpuslice.sim.kubelet.registration import new_server
from protos.podresources.v1 import api_pb2, api_pb2_grpc

SOCKET_NAME: Final = "kubelet.sock"


class TokenBucket:
    """Lets `burst` calls through at once and `qps` a second in the long run."""

    def __init__(self, *, qps: float, burst: int, monotonic: Callable[[], float]) -> None:
        self._qps, self._burst, self._monotonic = qps, burst, monotonic
        self._level, self._at = float(burst), monotonic()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Whether a call may pass now."""
        with self._lock:
            now = self._monotonic()
            self._level = min(self._burst, self._level + (now - self._at) * self._qps)
            self._at = now
            if self._level < 1:
                return False
            self._level -= 1
            return True


class PodResourcesServer(api_pb2_grpc.PodResourcesListerServicer):
    """Serves List, Get and GetAllocatableResources on a folder's kubelet.sock."""

    def __init__(
        self,
        folder: Path,
        allocator: DeviceAllocator,
        *,
        active_pods: Callable[[], Iterable[Json]],
        quirks: Quirks,
        monotonic: Callable[[], float],
    ) -> None:
        self.folder = folder
        self._allocator = allocator
        self._active_pods = active_pods
        self._bucket = TokenBucket(
            qps=quirks.pod_resources_qps, burst=quirks.pod_resources_burst, monotonic=monotonic
        )
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Serve."""
        self.folder.mkdir(parents=True, exist_ok=True)
        socket = self.folder / SOCKET_NAME
        socket.unlink(missing_ok=True)
        self._server = new_server(socket)
        api_pb2_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.start()

    def stop(self) -> None:
        """Stop serving; calls under way are dropped."""
        if self._server is not None:
            self._server.stop(grace=None).wait()
            (self.folder / SOCKET_NAME).unlink(missing_ok=True)

    def List(  # noqa: N802 - the protocol's name
        self, request: api_pb2.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> api_pb2.ListPodResourcesResponse:
        """Free the devices of pods that are gone, then list the others."""
        del request
        self._check_rate(context)
        self._allocator.update()
        return api_pb2.ListPodResourcesResponse(
            pod_resources=[self._resources_of(pod) for pod in self._active_pods()]
        )

    def Get(  # noqa: N802 - the protocol's name
        self, request: api_pb2.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> api_pb2.GetPodResourcesResponse:
        """Return one active pod's resources. Frees nothing."""
        self._check_rate(context)
        wanted = (request.pod_namespace, request.pod_name)
        for pod in self._active_pods():
            about = pods.ref(pod)
            if (about.namespace, about.name) == wanted:
                break
        else:
            message = f"pod {wanted[1]} in namespace {wanted[0]} not found"
            _fail(context, grpc.StatusCode.UNKNOWN, message)
        return api_pb2.GetPodResourcesResponse(pod_resources=self._resources_of(pod))

    def GetAllocatableResources(  # noqa: N802 - the protocol's name
        self, request: api_pb2.AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> api_pb2.AllocatableResourcesResponse:
        """Return the healthy devices, in use or not."""
        del request
        self._check_rate(context)
        return api_pb2.AllocatableResourcesResponse(
            devices=[
                self._device(resource, device_id)
                for resource, ids in self._allocator.allocatable().items()
                for device_id in ids
            ]
        )

    def _resources_of(self, pod: Json) -> api_pb2.PodResources:
        about = pods.ref(pod)
        held = self._allocator.holdings().get(about.uid, {})
        return api_pb2.PodResources(
            name=about.name,
            namespace=about.namespace,
            containers=[
                api_pb2.ContainerResources(
                    name=name,
                    devices=[
                        self._device(resource, device_id)
                        for resource, ids in held.get(name, {}).items()
                        for device_id in sorted(ids)
                    ],
                )
                for name in _listed_containers(pod)
            ],
        )

    def _device(self, resource: str, device_id: str) -> api_pb2.ContainerDevices:
        """Return the entry of one device: kubelet never puts two in one."""
        nodes = self._allocator.numa_nodes(resource, device_id)
        return api_pb2.ContainerDevices(
            resource_name=resource,
            device_ids=[device_id],
            topology=api_pb2.TopologyInfo(nodes=[api_pb2.NUMANode(ID=node) for node in nodes])
            if nodes
            else None,
        )

    def _check_rate(self, context: grpc.ServicerContext) -> None:
        if not self._bucket.take():
            _fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")


def _listed_containers(pod: Json) -> list[str]:
    """Return the names of the sidecars and the app containers."""
    spec = pods.spec_of(pod)
    sidecars = [
        each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"
    ]
    return [str(each.get("name")) for each in (*sidecars, *(spec.get("containers") or ()))]


def _fail(context: grpc.ServicerContext, code: grpc.StatusCode, message: str) -> NoReturn:
    context.abort(code, message)
    raise AssertionError("abort returns")
