# SPDX-License-Identifier: Apache-2.0
"""The webhook of an embedded cluster: real processes, behind a service of their own."""

from __future__ import annotations

import http.client
import itertools
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuslice.sim.processes import Child, Processes

LOOPBACK: Final = "127.0.0.1"
NAMESPACE: Final = "gpuslice"
READY_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One webhook."""

    child: Child
    port: int
    status_port: int

    def is_ready(self) -> bool:
        """Whether it says so on its own probe."""
        connection = http.client.HTTPConnection(LOOPBACK, self.status_port, timeout=1)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Replicas:
    """All webhooks of a cluster, and the service that leads to them in turn."""

    def __init__(self, processes: Processes, kubeconfig: Path, arguments: Sequence[str]) -> None:
        """Keep how to start one.

        Args:
            processes: where they are started.
            kubeconfig: of the webhook's service account.
            arguments: further flags of each, such as ``--settings``.
        """
        self._processes = processes
        self._kubeconfig = kubeconfig
        self._arguments = tuple(arguments)
        self._numbers = itertools.count()
        self._turn = itertools.count()
        self._lock = threading.Lock()
        self._running: tuple[Replica, ...] = ()

    @property
    def running(self) -> tuple[Replica, ...]:
        """Those that the service leads to."""
        return self._running

    def start(self, replicas: int) -> None:
        """Start some more at once, and wait until they are ready."""
        started = [self._start() for _ in range(replicas)]
        for replica in started:
            replica.child.wait_until(replica.is_ready, seconds=READY_SECONDS)
        with self._lock:
            self._running += tuple(started)

    def _start(self) -> Replica:
        port, status_port = _free_port(), _free_port()
        name = f"webhook-{next(self._numbers)}"
        child = self._processes.start(
            name,
            "webhook",
            (
                *("--kubeconfig", str(self._kubeconfig)),
                *("--host", LOOPBACK),
                *("--port", str(port)),
                *("--metrics-port", str(status_port)),
                *("--cert-dir", str(self._kubeconfig.with_name(name))),
                *("--set", f"webhook.namespace={NAMESPACE}"),
                *("--set", "webhook.drainSeconds=0"),
                *self._arguments,
            ),
        )
        return Replica(child=child, port=port, status_port=status_port)

    def stop(self, replica: Replica) -> None:
        """Take one out of the service, and end it."""
        with self._lock:
            self._running = tuple(each for each in self._running if each != replica)
        self._processes.stop(replica.child)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for what the replicas do together, such as writing their authority down."""
        for replica in self._running[:1]:
            replica.child.wait_until(is_so, seconds=READY_SECONDS)

    def resolve(self, namespace: str, name: str, port: int) -> tuple[str, int]:
        """Return the address of the replica whose turn it is.

        Raises:
            OSError: where there is none.
        """
        with self._lock:
            running = self._running
            turn = next(self._turn)
        if not running:
            raise OSError(f"service {name} of namespace {namespace}: nobody is at port {port}")
        return LOOPBACK, running[turn % len(running)].port


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as server:
        return int(server.getsockname()[1])
