# SPDX-License-Identifier: Apache-2.0
"""Being registered with kubelet, whatever it does: one thread, one server at a time.

kubelet forgets its plugins when it starts, and deletes their sockets. It never opens a stream
again that has ended. So what counts is not that Register once succeeded, but that a stream is
open, on a socket that is there, from the kubelet that is there.
"""

from __future__ import annotations

import contextlib
import enum
import secrets
import socket as sockets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import grpc

from deviceplugin.devices import DeviceBoard
from protos.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

API_VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
OUR_SOCKETS: Final = "gpuslice-*.sock"

REGISTER_SECONDS: Final = 15.0
"""kubelet dials back within Register and allows itself 10 s for that."""
REGISTER_LOOK_SECONDS: Final = 0.2


class RegistrationError(Exception):
    """kubelet isn't there, or didn't take the registration."""


class Server(Protocol):
    """What registration needs of a server."""

    socket: Path

    def start(self) -> None:
        """Serve; OSError where it can't."""

    def stop(self) -> None:
        """End, and wait for the end."""


class Trouble(enum.StrEnum):
    """Why a registration is over: a metric's label."""

    NEW_KUBELET = "new-kubelet"
    SOCKET_GONE = "own-socket-gone"
    NO_STREAM = "no-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long is waited for what, in seconds."""

    stream: float = 3.0
    """For kubelet to open the stream: after that it never will."""
    moment: float = 0.2
    """For a new stream after one has ended: it may have replaced it."""
    look: float = 1.0
    """Between looks at the sockets, should no file event come."""
    first_retry: float = 0.1
    last_retry: float = 5.0


def register(
    kubelet_socket: Path, endpoint: str, resource: str, *, is_worth_it: Callable[[], bool]
) -> None:
    """Tell kubelet of a plugin that serves already.

    Args:
        kubelet_socket: where kubelet listens.
        endpoint: the plugin's socket's name, in the same folder.
        resource: what it advertises.
        is_worth_it: asked now and then whether to wait on: a kubelet that dies in between may
            leave a connection that nobody answers.

    Raises:
        RegistrationError: with kubelet's words.
    """
    # A Go server refuses the escaped path that Python would send as the authority.
    options = [("grpc.default_authority", "localhost")]
    request = api_pb2.RegisterRequest(
        version=API_VERSION,
        endpoint=endpoint,
        resource_name=resource,
        options=api_pb2.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    with grpc.insecure_channel(f"unix://{kubelet_socket}", options=options) as channel:
        stub = api_pb2_grpc.RegistrationStub(channel)
        answer = stub.Register.future(request, timeout=REGISTER_SECONDS)
        while True:
            try:
                answer.result(timeout=REGISTER_LOOK_SECONDS)
            except grpc.FutureTimeoutError:
                if not is_worth_it():
                    answer.cancel()
                    raise RegistrationError("given up: this kubelet is gone") from None
            except grpc.RpcError as error:
                raise RegistrationError(f"{error.code().name}: {error.details()}") from error
            else:
                return


def identity(path: Path) -> tuple[int, int, int] | None:
    """Return what tells one file of a name from the next, None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def remove_dead_sockets(folder: Path) -> None:
    """Remove the sockets that a dead process of ours left; one that is served stays."""
    for path in folder.glob(OUR_SOCKETS):
        with sockets.socket(sockets.AF_UNIX) as probe, contextlib.suppress(OSError):
            try:
                probe.settimeout(1)
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()


class Registrar:
    """Keeps the plugin registered until it is stopped."""

    def __init__(
        self,
        folder: Path,
        resource: str,
        board: DeviceBoard,
        new_server: Callable[[Path], Server],
        *,
        pace: Pace | None = None,
        on_event: Callable[[str, str], None] = lambda _event, _detail: None,
    ) -> None:
        """Serve in kubelet's plugin folder.

        Args:
            folder: where kubelet.sock is.
            resource: what is advertised.
            board: knows whether a stream is open.
            new_server: makes a server for a socket that doesn't exist yet.
            pace: how long is waited.
            on_event: told ``registered``, ``waiting`` (with what for) and each `Trouble`.
        """
        self._folder = folder
        self._resource = resource
        self._board = board
        self._new_server = new_server
        self._pace = pace or Pace()
        self._on_event = on_event
        self._woken = threading.Condition()
        self._wakes = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; returns when the socket is closed."""
        with self._woken:
            self._stopping = True
            self._woken.notify_all()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """Look at the sockets and the stream now: something happened to them.

        Must be called at each change of `DeviceBoard.streaming`.
        """
        with self._woken:
            self._wakes += 1
            self._woken.notify_all()

    def _sleep(self, seconds: float) -> None:
        with self._woken:
            seen = self._wakes
            self._woken.wait_for(lambda: self._stopping or self._wakes != seen, seconds)

    def _run(self) -> None:
        remove_dead_sockets(self._folder)
        retry, said = self._pace.first_retry, ""
        while not self._stopping:
            try:
                problem = self._serve_once()
            except Exception as error:  # noqa: BLE001 - without this thread the node has no GPUs
                problem = f"unexpected: {error!r}"
            if not problem:
                retry, said = self._pace.first_retry, ""
                continue
            if problem != said:
                self._on_event("waiting", problem)
                said = problem
            self._sleep(retry)
            retry = min(2 * retry, self._pace.last_retry)

    def _serve_once(self) -> str:
        """Serve and be registered until that is over; return what stood in the way, if anything."""
        kubelet = self._folder / KUBELET_SOCKET
        known = identity(kubelet)
        if known is None:
            return f"{kubelet} is not there: is this kubelet's plugin folder, and does it run?"
        if not self._board.ready:
            return "no GPU has been looked at yet"
        server = self._new_server(self._new_path())
        try:
            server.start()
            register(
                kubelet,
                server.socket.name,
                self._resource,
                is_worth_it=lambda: not self._stopping and identity(kubelet) == known,
            )
            self._on_event("registered", server.socket.name)
            trouble, streamed = self._watch(kubelet, known, server.socket)
        except (OSError, RegistrationError) as error:
            return f"can't register at {kubelet}: {error}"
        finally:
            server.stop()
        if trouble is None:
            return ""
        self._on_event(trouble.value, server.socket.name)
        return "" if streamed else "kubelet took the registration, but opened no stream"

    def _new_path(self) -> Path:
        """Return a socket name that kubelet has never seen.

        It treats a second registration of one socket as the first, or mixes up the two.
        """
        while True:
            path = self._folder / f"gpuslice-{secrets.token_hex(4)}.sock"
            if not path.exists():
                return path

    def _watch(
        self, kubelet: Path, known: tuple[int, int, int], own: Path
    ) -> tuple[Trouble | None, bool]:
        """Return what ended the registration, None for `stop`; and whether a stream was open."""
        streamed = self._streams_within(self._pace.stream)
        while not self._stopping:
            if identity(kubelet) not in (known, None):
                return Trouble.NEW_KUBELET, streamed
            if not own.exists():
                return Trouble.SOCKET_GONE, streamed
            if not self._streams_within(self._pace.moment):
                return Trouble.NO_STREAM, streamed
            self._sleep(self._pace.look)
        return None, streamed

    def _streams_within(self, seconds: float) -> bool:
        with self._woken:
            self._woken.wait_for(lambda: self._stopping or self._board.streaming, seconds)
        return self._board.streaming
