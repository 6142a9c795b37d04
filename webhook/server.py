# SPDX-License-Identifier: Apache-2.0
"""The HTTPS server: granian, one worker process under a launcher that drains it.

The launcher only starts and ends workers; whatever knows the cluster lives in the worker. A new
certificate is served by a new worker, which begins once the old one has been joined by it: both
listen for a moment.

A pipe joins the two: its end means "go", whether the launcher says so or has died.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
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
    """A worker's end of the pipe."""

    def __init__(self, read_end: int, write_end: int, drain_seconds: float) -> None:
        """Keep both ends; `hold` closes the worker's copy of the one that isn't its own."""
        self._read_end = read_end
        self._write_end = write_end
        self._drain_seconds = drain_seconds
        self.draining = threading.Event()
        """Set when the launcher wants an end, or has died."""

    def hold(self) -> None:
        """Begin to watch the launcher, in the worker."""
        # Until granian sets its own, the launcher's handlers would swallow these here.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.close(self._write_end)
        threading.Thread(target=self._watch, name="leash", daemon=True).start()

    def _watch(self) -> None:
        launcher = os.getppid()
        os.read(self._read_end, 1)
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
    write_end: int = -1
    is_draining: bool = False

    def signal_handler_interrupt(self, *args: Any, **kwargs: Any) -> None:
        """Begin the draining; a second signal ends it."""
        if self.is_draining or self.drain_seconds <= 0:
            super().signal_handler_interrupt(*args, **kwargs)  # type: ignore[no-untyped-call]  # granian
            return
        self.is_draining = True
        os.close(self.write_end)
        timer = threading.Timer(self.drain_seconds, super().signal_handler_interrupt)
        timer.daemon = True
        timer.start()


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
    read_end, write_end = os.pipe()
    leash = Leash(read_end, write_end, listener.drain_seconds)

    def load_in_worker() -> Wsgi:
        leash.hold()
        return load(leash)

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
    )
    launcher.drain_seconds = listener.drain_seconds
    launcher.write_end = write_end
    try:
        launcher.serve(target_loader=load_in_worker, wrap_loader=False)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def ask_for_new_worker() -> None:
    """Have the launcher replace this worker: granian reads certificates only when one starts."""
    os.kill(os.getppid(), signal.SIGHUP)
