# SPDX-License-Identifier: Apache-2.0
"""A device plugin of 100 lines that speaks real gRPC, and the pods that ask for its things."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

RESOURCE = "example.com/thing"

Plug = Callable[..., "ToyPlugin"]
"""Makes a plugin that serves."""

Listed = Sequence[str | tuple[str, str]]
"""Devices: healthy ones by id, others with their health."""


class ToyPlugin(api_pb2_grpc.DevicePluginServicer):
    """Offers what it is told to, answers as it is told to, and notes what it was asked."""

    def __init__(self, folder: Path, devices: Listed, **answers: Any) -> None:
        self.folder = folder
        self.resource = answers.get("resource", RESOURCE)
        self.socket = answers.get("socket", "toy.sock")
        self.prefers = answers.get("prefers")
        self.on_allocate = answers.get("on_allocate")
        self.options_error = answers.get("options_error")
        self.pre_start_required = answers.get("pre_start_required", False)
        self.stream_error = answers.get("stream_error")
        self.calls: list[tuple[str, Any]] = []
        self._changed = threading.Condition()
        self._devices = list(devices)
        self._version = 0
        self._stopping = False
        self._server = grpc.server(ThreadPoolExecutor(max_workers=6))
        api_pb2_grpc.add_DevicePluginServicer_to_server(self, self._server)

    def serve(self) -> ToyPlugin:
        self._server.add_insecure_port(f"unix:{self.folder / self.socket}")
        self._server.start()
        return self

    def register(self, **changes: str) -> None:
        request = {
            "version": "v1beta1",
            "endpoint": self.socket,
            "resource_name": self.resource,
        } | changes
        with dial(self.folder / "kubelet.sock") as channel:
            stub = api_pb2_grpc.RegistrationStub(channel)
            stub.Register(api_pb2.RegisterRequest(**request), timeout=15)

    def publish(self, devices: Listed) -> None:
        with self._changed:
            self._devices = list(devices)
            self._version += 1
            self._changed.notify_all()

    def end_streams(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def stop(self) -> None:
        self.end_streams()
        self._server.stop(grace=None).wait()

    def asked(self, name: str) -> list[Any]:
        return [call[1] for call in self.calls if call[0] == name]

    def GetDevicePluginOptions(  # noqa: N802 - the protocol's name
        self, request: api_pb2.Empty, context: grpc.ServicerContext
    ) -> api_pb2.DevicePluginOptions:
        self.calls.append(("options", None))
        if self.options_error:
            context.abort(grpc.StatusCode.INTERNAL, self.options_error)
        return api_pb2.DevicePluginOptions(
            get_preferred_allocation_available=self.prefers is not None,
            pre_start_required=self.pre_start_required,
        )

    def ListAndWatch(  # noqa: N802 - the protocol's name
        self, request: api_pb2.Empty, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.ListAndWatchResponse]:
        self.calls.append(("list", None))
        if self.stream_error:
            context.abort(grpc.StatusCode.INTERNAL, self.stream_error)
        context.add_callback(self.end_streams)
        seen = -1
        while True:
            with self._changed:
                while not self._stopping and self._version == seen:
                    self._changed.wait()
                if self._stopping:
                    return
                seen, devices = self._version, tuple(self._devices)
            yield api_pb2.ListAndWatchResponse(
                devices=[
                    api_pb2.Device(ID=each, health="Healthy")
                    if isinstance(each, str)
                    else api_pb2.Device(ID=each[0], health=each[1])
                    for each in devices
                ]
            )

    def GetPreferredAllocation(  # noqa: N802 - the protocol's name
        self, request: api_pb2.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api_pb2.PreferredAllocationResponse:
        (wanted,) = request.container_requests
        available, must = set(wanted.available_deviceIDs), set(wanted.must_include_deviceIDs)
        self.calls.append(("preferred", (available, must, wanted.allocation_size)))
        answer = self.prefers(available, must, wanted.allocation_size)
        if isinstance(answer, str):
            context.abort(grpc.StatusCode.INTERNAL, answer)
        return api_pb2.PreferredAllocationResponse(
            container_responses=[
                api_pb2.ContainerPreferredAllocationResponse(deviceIDs=sorted(answer))
            ]
        )

    def Allocate(  # noqa: N802 - the protocol's name
        self, request: api_pb2.AllocateRequest, context: grpc.ServicerContext
    ) -> api_pb2.AllocateResponse:
        (wanted,) = request.container_requests
        ids = set(wanted.devices_ids)
        self.calls.append(("allocate", ids))
        if self.on_allocate is not None:
            error = self.on_allocate(ids)
            if error == "":
                return api_pb2.AllocateResponse()
            if error is not None:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, error)
        answer = api_pb2.ContainerAllocateResponse(
            envs={"THINGS": ",".join(sorted(ids)), "FROM": "plugin"}
        )
        return api_pb2.AllocateResponse(container_responses=[answer])

    def PreStartContainer(  # noqa: N802 - the protocol's name
        self, request: api_pb2.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api_pb2.PreStartContainerResponse:
        self.calls.append(("pre_start", set(request.devices_ids)))
        return api_pb2.PreStartContainerResponse()


def dial(socket: Path) -> grpc.Channel:
    return grpc.insecure_channel(
        f"unix:{socket}",
        options=[("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)],
    )


def eventually(predicate: Callable[[], object], seconds: float = 10) -> None:
    """Wait until something holds that no event announces; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s")
        time.sleep(0.005)


def build_pod(
    name: str, count: int = 1, *, init: Sequence[dict[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    """Return a pod of one app container `main` that asks for `count` things."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {
            "initContainers": list(init),
            "containers": [build_container("main", count)],
            **more,
        },
    }


def build_container(name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    amounts = {RESOURCE: str(count)} if count else {}
    return {"name": name, "resources": {"limits": amounts, "requests": amounts}, **more}


class Hours:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
