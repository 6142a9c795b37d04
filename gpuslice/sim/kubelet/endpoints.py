# SPDX-License-Identifier: Apache-2.0
"""kubelet's side of one registered plugin: it dials the plugin's socket and asks.

Source: Kubernetes v1.36, pkg/kubelet/cm/devicemanager, endpoint.go and plugin/v1beta1/client.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Final

import grpc

from gpuslice.sim.kubelet.devices import Device
from protos.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

DIAL_SECONDS: Final = 10.0
PRE_START_SECONDS: Final = 30.0
MAX_RECEIVE_BYTES: Final = 4 * 2**20
"""gRPC's default, which kubelet keeps: a longer list of devices ends the stream."""

HEALTHY: Final = "Healthy"


class PluginError(Exception):
    """A plugin can't be reached or answered with an error; the text is what kubelet would log."""


def describe(err: grpc.RpcError) -> str:
    """Return an RPC error as Go prints it: ``rpc error: code = Unavailable desc = ...``."""
    if not isinstance(err, grpc.Call):
        return f"rpc error: code = Unknown desc = {err}"
    name = err.code().name.title().replace("_", "").replace("Cancelled", "Canceled")
    return f"rpc error: code = {name} desc = {err.details()}"


class Endpoint:
    """One registration of a plugin, from its Register to the end of its stream."""

    def __init__(self, resource: str, socket: Path, rng: Random) -> None:
        self.resource = resource
        self.socket = socket
        self.options = api_pb2.DevicePluginOptions()
        self.stopped_at: float | None = None
        """When its stream ended, on the owner's clock; None while it is up."""
        self._rng = rng
        self._channel = grpc.insecure_channel(
            f"unix:{socket}",
            options=[
                ("grpc.default_authority", "localhost"),
                ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_http_proxy", 0),
            ],
        )
        self._stub = api_pb2_grpc.DevicePluginStub(self._channel)
        self._stream: grpc.Call | None = None
        self._closed = False

    def connect(self) -> None:
        """Dial the plugin and ask for its options.

        Raises:
            PluginError: where either fails.
        """
        try:
            grpc.channel_ready_future(self._channel).result(timeout=DIAL_SECONDS)
        except grpc.FutureTimeoutError as err:
            raise PluginError(
                f"failed to dial device plugin with socketPath {self.socket}: "
                "context deadline exceeded"
            ) from err
        try:
            self.options = self._stub.GetDevicePluginOptions(api_pb2.Empty())
        except grpc.RpcError as err:
            raise PluginError(f"failed to get device plugin options: {describe(err)}") from err

    def watch(self, take: Callable[[tuple[Device, ...]], None]) -> str:
        """Open ListAndWatch and hand every list to `take`, until the stream ends.

        Returns:
            Why it ended.
        """
        try:
            stream = self._stub.ListAndWatch(api_pb2.Empty())
            self._stream = stream
            if self._closed:  # between the two lines: nobody else would end the stream
                stream.cancel()
            for message in stream:
                take(tuple(map(_device, message.devices)))
        except grpc.RpcError as err:
            return describe(err)
        except ValueError:  # the channel was closed before the stream opened
            return "the connection is closing"
        return "EOF"

    def preferred(
        self, available: Iterable[str], must_include: Iterable[str], size: int
    ) -> tuple[str, ...]:
        """Ask which devices to take, without a deadline.

        Raises:
            PluginError: where the plugin has stopped or answers with an error.
        """
        self._check_running()
        request = api_pb2.PreferredAllocationRequest(
            container_requests=[
                api_pb2.ContainerPreferredAllocationRequest(
                    available_deviceIDs=self._shuffled(available),
                    must_include_deviceIDs=self._shuffled(must_include),
                    allocation_size=size,
                )
            ]
        )
        try:
            answer = self._stub.GetPreferredAllocation(request)
        except (grpc.RpcError, ValueError) as err:
            raise PluginError(_text(err)) from err
        first = next(iter(answer.container_responses), None)
        return tuple(first.deviceIDs) if first else ()

    def allocate(self, ids: Iterable[str]) -> api_pb2.AllocateResponse:
        """Tell the plugin the devices of ONE container, without a deadline.

        Raises:
            PluginError: where the plugin has stopped or answers with an error.
        """
        self._check_running()
        request = api_pb2.AllocateRequest(
            container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=self._shuffled(ids))]
        )
        try:
            return self._stub.Allocate(request)
        except (grpc.RpcError, ValueError) as err:
            raise PluginError(_text(err)) from err

    def pre_start(self, ids: Iterable[str]) -> None:
        """Tell the plugin that a container with these devices is about to start.

        Raises:
            PluginError: where the plugin has stopped, is late or answers with an error.
        """
        self._check_running()
        request = api_pb2.PreStartContainerRequest(devices_ids=self._shuffled(ids))
        try:
            self._stub.PreStartContainer(request, timeout=PRE_START_SECONDS)
        except (grpc.RpcError, ValueError) as err:
            raise PluginError(_text(err)) from err

    def close(self) -> None:
        """Close the connection, which ends the stream. Any number of times."""
        self._closed = True
        if self._stream is not None:
            self._stream.cancel()
        self._channel.close()

    def _check_running(self) -> None:
        if self.stopped_at is not None:
            raise PluginError(f"endpoint {self.resource} has been stopped")

    def _shuffled(self, ids: Iterable[str]) -> list[str]:
        """Return the ids in no order at all, as from a Go map."""
        every = sorted(ids)
        return self._rng.sample(every, len(every))


def _text(err: Exception) -> str:
    if isinstance(err, grpc.RpcError):
        return describe(err)
    return "rpc error: code = Canceled desc = grpc: the client connection is closing"


def _device(message: api_pb2.Device) -> Device:
    return Device(
        id=message.ID,
        healthy=message.health == HEALTHY,
        numa_nodes=tuple(node.ID for node in message.topology.nodes),
    )
