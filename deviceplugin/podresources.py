# SPDX-License-Identifier: Apache-2.0
"""Asking kubelet which tokens a pod has, and whether it still knows the pod.

Only `Get`. `List` frees what dead pods had, and makes a kubelet up to 1.37 that is handing out
tokens at that moment hand one of them out twice; the checkpoint tells the same without harm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc

from protos.podresources.v1 import api_pb2, api_pb2_grpc

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Other resources' entries come along; kubelet's own clients use this limit."""

GET_SECONDS: Final = 1.0


class CannotAskError(Exception):
    """kubelet doesn't answer, or not now; it says nothing about the pod."""


class PodResources:
    """A client of kubelet's PodResources socket; it connects when it is first asked."""

    def __init__(self, socket: Path, resource: str) -> None:
        """Ask at a socket for a resource."""
        self._channel = grpc.insecure_channel(
            f"unix://{socket}",
            options=[
                ("grpc.default_authority", "localhost"),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                # kubelet makes the socket anew at each start: try often.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )
        self._kubelet = api_pb2_grpc.PodResourcesListerStub(self._channel)
        self._resource = resource

    def get(self, namespace: str, name: str) -> frozenset[str] | None:
        """Return the tokens that a pod has, None where kubelet no longer knows the pod.

        Raises:
            CannotAskError: where kubelet doesn't tell.
        """
        request = api_pb2.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        try:
            answer = self._kubelet.Get(request, timeout=GET_SECONDS)
        except grpc.RpcError as error:
            # kubelet answers with a plain Go error, which gRPC calls UNKNOWN.
            code, details = error.code(), str(error.details())
            if code is grpc.StatusCode.NOT_FOUND or (
                code is grpc.StatusCode.UNKNOWN and "not found" in details
            ):
                return None
            raise CannotAskError(f"PodResources Get: {code.name}: {details}") from error
        # kubelet makes one entry of each token.
        return frozenset(
            token
            for container in answer.pod_resources.containers
            for devices in container.devices
            if devices.resource_name == self._resource
            for token in devices.device_ids
        )

    def close(self) -> None:
        """Hang up."""
        self._channel.close()
