# SPDX-License-Identifier: Apache-2.0
"""kubelet's registration server: where plugins announce themselves.

Source: Kubernetes v1.36, pkg/kubelet/cm/devicemanager/plugin/v1beta1/{server,handler}.go.
"""

from __future__ import annotations

import contextlib
import logging
import re
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Final, NoReturn

import grpc

from gpuslice.sim.kubelet.allocator import DeviceAllocator
from gpuslice.sim.kubelet.endpoints import Endpoint, PluginError
from gpuslice.sim.kubelet.quirks import Quirks
from protos.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

log = logging.getLogger(__name__)

VERSION: Final = "v1beta1"
SOCKET_NAME: Final = "kubelet.sock"
MAX_SOCKET_PATH_BYTES: Final = 107
"""Linux's limit for the path of a unix socket."""

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


def is_extended_resource(name: str) -> bool:
    """Whether a resource is an extended one: of a domain that isn't Kubernetes' own."""
    domain, slash, rest = name.partition("/")
    own = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
    if not slash or own or name.startswith("requests."):
        return False
    return bool(_DOMAIN.fullmatch(domain) and _NAME.fullmatch(rest))


class RegistrationServer(api_pb2_grpc.RegistrationServicer):
    """Serves Register on a folder's kubelet.sock, and follows every plugin that registers."""

    def __init__(
        self, folder: Path, allocator: DeviceAllocator, *, rng: Random, quirks: Quirks
    ) -> None:
        self.folder = folder
        self.registrations = 0
        """How many plugins have registered with success."""
        self._allocator = allocator
        self._rng = rng
        self._quirks = quirks
        self._lock = threading.Lock()
        self._present: dict[str, Endpoint] = {}
        """The latest plugin of each resource."""
        self._every: set[Endpoint] = set()
        """All connections: those that a later registration replaced stay open, as the real ones
        do, until their plugin ends them."""
        self._followers: set[threading.Thread] = set()
        self._server: grpc.Server | None = None
        self._stopping = False

    def start(self) -> None:
        """Remove the folder's sockets, whoever made them, and serve."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_sockets(self.folder)
        self._server = serve(self.folder / SOCKET_NAME, self)

    def stop(self) -> None:
        """Drop all connections and the socket, as a kubelet that ends does."""
        with self._lock:
            self._stopping = True
            every, followers = tuple(self._every), tuple(self._followers)
        if self._server is not None:
            self._server.stop(grace=None).wait()
            (self.folder / SOCKET_NAME).unlink(missing_ok=True)
        for endpoint in every:
            endpoint.close()
        for follower in followers:
            follower.join(timeout=1)

    def Register(  # noqa: N802 - the protocol's name
        self, request: api_pb2.RegisterRequest, context: grpc.ServicerContext
    ) -> api_pb2.Empty:
        """Check a plugin, dial it back, ask its options, and begin to follow its devices."""
        if request.version != VERSION:
            _fail(
                context,
                f'requested API version "{request.version}" is not supported by kubelet. '
                f'Supported version is ["{VERSION}"]',
            )
        if not is_extended_resource(request.resource_name):
            _fail(context, f'the ResourceName "{request.resource_name}" is invalid')
        endpoint = Endpoint(request.resource_name, self.folder / request.endpoint, self._rng)
        try:
            endpoint.connect()
        except PluginError as err:
            endpoint.close()
            _fail(context, str(err))
        follower = threading.Thread(
            target=self._follow, args=(endpoint,), name=f"plugin {endpoint.resource}", daemon=True
        )
        with self._lock:
            if self._stopping:
                endpoint.close()
                _fail(context, "kubelet is stopping")
            self._present[endpoint.resource] = endpoint
            self._every.add(endpoint)
            self._followers.add(follower)
            self.registrations += 1
        self._allocator.connect(endpoint)
        follower.start()
        return api_pb2.Empty()

    def _follow(self, endpoint: Endpoint) -> None:
        resource = endpoint.resource
        why = endpoint.watch(lambda devices: self._allocator.take_list(resource, devices))
        log.info("ListAndWatch of %s ended: %s", resource, why)
        with self._lock:
            self._followers.discard(threading.current_thread())
            self._every.discard(endpoint)
            present = self._present.get(resource)
            if self._stopping or present is None:
                ended = None
            elif present is endpoint or self._quirks.old_stream_ends_new_plugin:
                ended = self._present.pop(resource)
            else:
                ended = None
        endpoint.close()
        if ended is not None:
            ended.close()
            self._allocator.disconnect(resource)


def remove_sockets(folder: Path) -> None:
    """Remove the sockets that lie directly in a folder; subfolders and files stay."""
    for path in folder.iterdir():
        # A plugin may take its own away at the same moment.
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()


def serve(socket: Path, servicer: api_pb2_grpc.RegistrationServicer) -> grpc.Server:
    """Serve registrations on a unix socket."""
    server = new_server(socket)
    api_pb2_grpc.add_RegistrationServicer_to_server(servicer, server)
    server.start()
    return server


def new_server(socket: Path) -> grpc.Server:
    """Return a gRPC server bound to a unix socket, not yet started."""
    if len(str(socket).encode()) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"{socket}: longer than a unix socket's path may be")
    server = grpc.server(
        ThreadPoolExecutor(max_workers=8, thread_name_prefix=f"kubelet {socket.parent.name}")
    )
    server.add_insecure_port(f"unix:{socket}")
    return server


def _fail(context: grpc.ServicerContext, message: str) -> NoReturn:
    """End a call as Go does with a plain error: code Unknown."""
    context.abort(grpc.StatusCode.UNKNOWN, message)
    raise AssertionError("abort returns")
