# SPDX-License-Identifier: Apache-2.0
"""The gRPC service that kubelet calls: translation only, the answers come from elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn, Protocol

import grpc

from deviceplugin.allocation import Refusal
from deviceplugin.allocator import Allocator
from deviceplugin.contents import InjectionError
from deviceplugin.devices import DeviceBoard
from deviceplugin.injection import Injection
from protos.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

THREADS: Final = 10
"""Each open stream keeps one; at least 8 must be left for calls."""


class Watcher(Protocol):
    """Counts kubelet's calls."""

    def outcome(self, result: str) -> None:
        """Take how an Allocate ended: ``granted``, or a refusal's reason."""

    def took(self, call: str, seconds: float) -> None:
        """Take how long a call took."""


class DevicePlugin(api_pb2_grpc.DevicePluginServicer):
    """Answers kubelet."""

    def __init__(
        self,
        board: DeviceBoard,
        allocator: Allocator,
        injection: Callable[[], Injection],
        watcher: Watcher,
    ) -> None:
        """Answer from a board, an allocator, and the newest rules of what goes into containers."""
        self._board = board
        self._allocator = allocator
        self._injection = injection
        self._watcher = watcher

    def GetDevicePluginOptions(  # noqa: N802 - the protocol's name
        self,
        request: api_pb2.Empty,  # noqa: ARG002 - gRPC passes it
        context: grpc.ServicerContext,  # noqa: ARG002 - likewise
    ) -> api_pb2.DevicePluginOptions:
        """Say that preferences are given; kubelet asks during Register, and ignores what it said.

        Source: k8s.io/kubernetes pkg/kubelet/cm/devicemanager/manager.go.
        """
        return api_pb2.DevicePluginOptions(get_preferred_allocation_available=True)

    def ListAndWatch(  # noqa: N802 - the protocol's name
        self,
        request: api_pb2.Empty,  # noqa: ARG002 - gRPC passes it
        context: grpc.ServicerContext,
    ) -> Iterator[api_pb2.ListAndWatchResponse]:
        """Stream the list of tokens."""
        stream = self._board.open()
        if not context.add_callback(stream.end):
            stream.end()
        yield from stream.messages()

    def GetPreferredAllocation(  # noqa: N802 - the protocol's name
        self,
        request: api_pb2.PreferredAllocationRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - gRPC passes it
    ) -> api_pb2.PreferredAllocationResponse:
        """Prefer tokens; an error here would fail the pod."""
        with self._timed("GetPreferredAllocation"):
            return api_pb2.PreferredAllocationResponse(
                container_responses=[
                    api_pb2.ContainerPreferredAllocationResponse(
                        deviceIDs=self._allocator.prefer(
                            available=each.available_deviceIDs,
                            must_include=each.must_include_deviceIDs,
                            size=each.allocation_size,
                        )
                    )
                    for each in request.container_requests
                ]
            )

    def Allocate(  # noqa: N802 - the protocol's name
        self, request: api_pb2.AllocateRequest, context: grpc.ServicerContext
    ) -> api_pb2.AllocateResponse:
        """Check kubelet's choice, and say what the container gets."""
        if not request.container_requests:
            # kubelet takes an empty answer for an error, and keeps the tokens all the same.
            self._refuse(context, "empty", "a request for no container")
        answers = []
        with self._timed("Allocate"):
            for each in request.container_requests:
                answer = self._allocator.allocate(each.devices_ids)
                if isinstance(answer, Refusal):
                    self._refuse(context, answer.reason.value, answer.message)
                try:
                    response = self._injection().response(answer, self._allocator.view.ledger)
                except InjectionError as error:
                    self._refuse(context, "no-injection", str(error))
                self._watcher.outcome("granted")
                answers.append(response)
        return api_pb2.AllocateResponse(container_responses=answers)

    @contextmanager
    def _timed(self, call: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._watcher.took(call, time.perf_counter() - begun)

    def PreStartContainer(  # noqa: N802 - the protocol's name
        self,
        request: api_pb2.PreStartContainerRequest,  # noqa: ARG002 - gRPC passes it
        context: grpc.ServicerContext,  # noqa: ARG002 - likewise
    ) -> api_pb2.PreStartContainerResponse:
        """Do nothing: the options say that it needn't be called."""
        return api_pb2.PreStartContainerResponse()

    def _refuse(self, context: grpc.ServicerContext, reason: str, message: str) -> NoReturn:
        self._watcher.outcome(reason)
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)


class PluginServer:
    """One server on one socket, used for one registration."""

    def __init__(self, servicer: DevicePlugin, board: DeviceBoard, socket: Path) -> None:
        """Be ready to serve on a socket that doesn't exist yet."""
        self.socket = socket
        self._board = board
        self._pool = futures.ThreadPoolExecutor(THREADS, thread_name_prefix="kubelet-call")
        self._server = grpc.server(
            self._pool,
            # kubelet says "localhost", older ones an escaped path; a reused port has no meaning.
            options=[("grpc.so_reuseport", 0)],
        )
        api_pb2_grpc.add_DevicePluginServicer_to_server(servicer, self._server)

    def start(self) -> None:
        """Serve.

        Raises:
            OSError: where the socket can't be made.
        """
        try:
            if not self._server.add_insecure_port(f"unix://{self.socket}"):
                raise OSError(f"can't listen on {self.socket}")
        except RuntimeError as error:
            raise OSError(f"can't listen on {self.socket}: {error}") from error
        self._server.start()

    def stop(self, grace_seconds: float = 1.0) -> None:
        """End the stream and the calls, and wait for that; the socket is gone then.

        A kubelet up to 1.36 that sees an old stream end after a new registration drops the new
        one, so nothing is registered before this has returned.
        """
        self._board.retire()
        ended: threading.Event = self._server.stop(grace_seconds)
        ended.wait(grace_seconds + 1)
        # gRPC leaves them to the garbage collector, which may not come by for long.
        self._pool.shutdown(wait=False)
        self.socket.unlink(missing_ok=True)
