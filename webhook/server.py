# SPDX-License-Identifier: Apache-2.0
"""The HTTPS server: granian, one worker process under a launcher that drains it.

The launcher only starts and ends workers; whatever knows the cluster lives in the worker. A new
certificate is served by a new worker. The old one goes on until the new one has all it needs, then
tells its clients to connect anew, and ends once they have: no request is lost.

A pipe joins the launcher to each worker. A byte in it, or its end because the launcher died, means
"go".
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import multiprocessing
import os
import select
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.mp import MPServer

from gpuslice.runtime import logs

log = logs.get(__name__)

Wsgi = Callable[..., Any]

THREADS: Final = 128
"""Requests at once: more than the binds that may wait, so that admission always finds one."""
IDLE_MILLISECONDS: Final = 60_000
"""A connection without a request is closed after this; the API server's own limit is 90 s."""
STOP_SECONDS: Final = 5
"""For requests in flight, once the draining is over."""

POLL_SECONDS: Final = 0.05
_M_ARENA_MAX: Final = -8
"""Of glibc's malloc.h."""
LOAD_SECONDS: Final = 90.0
"""For a new worker to read the cluster, before the old one ends all the same."""
LISTEN_SECONDS: Final = 0.5
"""From a worker's having its application to its listening."""
LEAVE_SECONDS: Final = 3.0
"""For clients to leave an old worker: each answer tells them to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Where and how to serve."""

    host: str
    port: int
    certificate: Path
    key: Path
    drain_seconds: float
    """For how long it goes on to serve after SIGTERM: the API server learns late."""


class Leash:
    """What joins a worker to its launcher; each worker has its own."""

    def __init__(self, drain_seconds: float) -> None:
        """Open the pipes, in the launcher."""
        self._go_read, self._go_write = os.pipe()
        self._loaded_read, self._loaded_write = os.pipe()
        self._drain_seconds = drain_seconds
        self.draining = threading.Event()
        """Set when the launcher wants an end, or has died."""

    def hold(self) -> None:
        """Begin to watch the launcher, in the worker."""
        # Until granian sets its own, the launcher's handlers would swallow these here.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.drop_launchers_ends()
        threading.Thread(target=self._watch, name="leash", daemon=True).start()

    def drop_launchers_ends(self) -> None:
        """Close what a worker inherits and only the launcher may hold."""
        os.close(self._go_write)
        os.close(self._loaded_read)

    def loaded(self) -> None:
        """Tell the launcher that the application is there, in the worker."""
        os.write(self._loaded_write, b"x")

    def let_go(self) -> None:
        """Tell the worker to drain, in the launcher."""
        with contextlib.suppress(OSError):
            os.write(self._go_write, b"x")

    def wait_loaded(self, seconds: float, stopping: Callable[[], bool]) -> None:
        """Wait until the worker has its application, in the launcher.

        Args:
            seconds: after which it is waited for no longer.
            stopping: returns whether there is no need to wait any more.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until and not stopping():
            if select.select([self._loaded_read], [], [], POLL_SECONDS)[0]:
                return

    def close(self) -> None:
        """Close all ends, in the launcher, once the worker has ended."""
        for end in (self._go_read, self._go_write, self._loaded_read, self._loaded_write):
            os.close(end)

    def _watch(self) -> None:
        launcher = os.getppid()
        os.read(self._go_read, 1)
        self.draining.set()
        never = threading.Event()
        never.wait(self._drain_seconds)
        # A living launcher ends this process itself; the pipe of a dead one ends a little earlier
        # than its children are somebody else's.
        until = time.monotonic() + STOP_SECONDS
        while os.getppid() == launcher and time.monotonic() < until:
            never.wait(POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        never.wait(STOP_SECONDS)
        os._exit(1)


class _Launcher(MPServer):
    """Ends its worker gently: first it goes on serving while clients are told to leave."""

    drain_seconds: float = 0.0
    is_draining: bool = False
    leash: Leash | None = None
    """Of the worker that serves."""

    def signal_handler_interrupt(self, *args: Any, **kwargs: Any) -> None:
        """Begin the draining; a second signal ends it."""
        if self.is_draining or self.drain_seconds <= 0:
            super().signal_handler_interrupt(*args, **kwargs)  # type: ignore[no-untyped-call]  # granian
            return
        self.is_draining = True
        if self.leash is not None:
            self.leash.let_go()
        timer = threading.Timer(self.drain_seconds, super().signal_handler_interrupt)
        timer.daemon = True
        timer.start()

    def _spawn_worker(  # type: ignore[override]  # granian's differs by platform
        self, idx: int, target: Any, callback_loader: Callable[[Leash], Wsgi]
    ) -> Any:
        earlier, self.leash = self.leash, Leash(self.drain_seconds)
        load = functools.partial(self._load, callback_loader, self.leash, earlier)
        return super()._spawn_worker(idx, target, load)

    @staticmethod
    def _load(load: Callable[[Leash], Wsgi], leash: Leash, earlier: Leash | None) -> Wsgi:
        if earlier is not None:
            earlier.drop_launchers_ends()
        leash.hold()
        application = load(leash)
        leash.loaded()
        return application

    def _respawn_workers(
        self, workers: Sequence[int], spawn_target: Any, target_loader: Any, delay: float = 0.0
    ) -> None:
        """Start a new worker, and end the old one once nobody needs it any more.

        granian's own way ends the old one after a fixed time, whether the new one answers or not,
        and in the middle of its clients' connections.
        """
        (index,) = workers
        old_leash = self.leash
        old: Any = self.wrks.pop(index)
        new = self._spawn_worker(index, spawn_target, target_loader)
        new.start()
        self.wrks.insert(index, new)
        assert self.leash is not None
        assert old_leash is not None
        self.leash.wait_loaded(
            LOAD_SECONDS, lambda: self.interrupt_signal or not new.is_alive() or self.is_draining
        )
        if self.is_draining:
            self.leash.let_go()
        time.sleep(LISTEN_SECONDS)
        old_leash.let_go()
        time.sleep(delay)
        old.terminate()
        old.join(STOP_SECONDS)
        if old.is_alive():
            old.kill()
            old.join()
        old_leash.close()


def free_port(host: str) -> int:
    """Return a port that nobody listens on now: each worker opens it for itself."""
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])


def serves(host: str, port: int) -> bool:
    """Whether somebody shows a certificate there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is about being there, not about being trusted
    address = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104  any address
    try:
        with (
            socket.create_connection((address, port), timeout=STOP_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname="localhost"),
        ):
            return True
    except OSError:
        return False


def serve(listener: Listener, load: Callable[[Leash], Wsgi]) -> int:
    """Serve until a signal, and return the exit code.

    Args:
        listener: where and how.
        load: called in the worker before it listens; returns the application.
    """
    _share_one_heap()
    # Fork shares the imported code between both processes; spawn would load it twice.
    multiprocessing.set_start_method("fork", force=True)
    gc.collect()
    gc.freeze()
    launcher = _Launcher(
        "webhook",
        address=listener.host,
        port=listener.port,
        interface=Interfaces.WSGI,
        workers=1,
        blocking_threads=THREADS,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=IDLE_MILLISECONDS),
        websockets=False,
        log_level=LogLevels.error,
        log_dictconfig={"handlers": {}, "loggers": {"_granian": {"propagate": True}}},
        ssl_cert=listener.certificate,
        ssl_key=listener.key,
        ssl_protocol_min=SSLProtocols.tls12,
        workers_kill_timeout=STOP_SECONDS,
        respawn_interval=LEAVE_SECONDS,
    )
    launcher.drain_seconds = listener.drain_seconds
    try:
        launcher.serve(target_loader=load, wrap_loader=False)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def _share_one_heap() -> None:
    """Have all threads take memory from one heap: glibc gives each of a hundred its own to keep.

    They take turns at the interpreter anyway. Other C libraries have no such call.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def ask_for_new_worker() -> None:
    """Have the launcher replace this worker: granian reads certificates only when one starts."""
    os.kill(os.getppid(), signal.SIGHUP)
