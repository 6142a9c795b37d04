# SPDX-License-Identifier: Apache-2.0
"""One worker: the caches, the arbiter and the list of shares behind the application."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gpuslice.contract.placement import Policy
from gpuslice.runtime import logs
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.resources import GPU_SHARES
from gpuslice.runtime.kube.watch import WatchCache
from gpuslice.runtime.metrics import Metrics
from gpuslice.runtime.settings import Settings
from gpuslice.runtime.status_server import State, StatusServer
from webhook import app, nodes, podcache
from webhook.arbiter import Arbiter, Binding, Patience, Verdict
from webhook.records import Records
from webhook.shares import ShareKeeper
from webhook.standing import CurrentPolicy

log = logs.get(__name__)

WARM_SECONDS: Final = 60.0
"""A worker that can't read the cluster serves all the same, and says that it isn't ready."""
PORT_RETRY_SECONDS: Final = 0.5
"""The worker before this one may still have the port of the metrics."""
MARGIN_SECONDS: Final = 0.3
"""Of the API server's 3 seconds for a bind, for the way there and back."""
BIND_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Caches:
    gpu_nodes: WatchCache
    gpu_shares: WatchCache
    pods: WatchCache
    nodes: WatchCache

    def all(self) -> tuple[WatchCache, ...]:
        return (self.gpu_nodes, self.gpu_shares, self.pods, self.nodes)


class Worker:
    """Everything that one worker process runs."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        *,
        draining: threading.Event,
        served: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Put the parts together; nothing runs yet.

        Args:
            settings: as read at start.
            client: this process's own.
            draining: set once the process is to end.
            served: returns whether the server answers, which it does only after `start`.
            clock: monotonic seconds.
        """
        self._settings = settings
        self._draining = draining
        self._served = served
        self._is_served = False
        self._expires: datetime | None = None
        self._metrics = Metrics("webhook")
        self._records = Records(self._metrics)
        hold = settings.arbiter.rise_hold_milliseconds / 1000
        views = nodes.NodeViews(client, hold_seconds=hold, clock=clock)
        self._caches = _Caches(
            gpu_nodes=nodes.watch_gpu_nodes(client),
            gpu_shares=WatchCache(client, GPU_SHARES),
            pods=podcache.watch_pods(client, settings.resource_name),
            nodes=views.cache,
        )
        self._arbiter = Arbiter(
            ledgers=nodes.GpuNodes(client, self._caches.gpu_nodes),
            pods_source=podcache.PodCache(client, self._caches.pods, settings.resource_name),
            nodes=views,
            policy=Policy(settings.placement),
            patience=Patience(
                room_seconds=settings.arbiter.wait_milliseconds / 1000,
                node_seconds=settings.arbiter.ledger_wait_seconds,
                total_seconds=BIND_SECONDS - MARGIN_SECONDS,
                waiters=settings.arbiter.max_waiters,
            ),
            clock=clock,
        )
        self._policy = CurrentPolicy(
            settings,
            gpu_nodes=self._caches.gpu_nodes,
            gpu_shares=self._caches.gpu_shares,
        )
        self._shares = ShareKeeper(
            client=client,
            pods=self._caches.pods,
            listed=self._caches.gpu_shares,
            standing=self._policy.standing_shares,
            idle_seconds=settings.share_idle_seconds,
            clock=clock,
        )
        self._policy.on_new_fleet(self._shares.nudge)
        self.app = app.create_app(
            app.Deciders(policy=self._policy, bind=self._bind),
            record=self._records.review,
            clock=clock,
            draining=draining,
            max_body_bytes=settings.webhook.max_body_mib * 2**20,
        )

    def start(self) -> None:
        """Start all parts, and wait until the caches are warm."""
        threading.Thread(target=self._serve_status, name="status-start", daemon=True).start()
        for cache in self._caches.all():
            cache.start()
        self._shares.start()
        until = time.monotonic() + WARM_SECONDS
        for cache in self._caches.all():
            cache.wait_ready(max(0.0, until - time.monotonic()))
        problems = [cache.problem or "late" for cache in self._caches.all() if not cache.is_ready]
        log.info("worker_started", warm=not problems, why="; ".join(problems))

    def stop(self) -> None:
        """End all parts."""
        self._shares.stop()
        for cache in self._caches.all():
            cache.stop()

    def certificate_expires(self, expires: datetime) -> None:
        """Take the time at which the served certificate expires."""
        self._expires = expires
        self._records.certificate(expires)

    def ready(self) -> State:
        """Say whether binds and pods can be decided here."""
        if self._draining.is_set():
            return False, "draining"
        if self._expires is not None and datetime.now(UTC) >= self._expires:
            return False, f"the certificate expired on {self._expires:%Y-%m-%d %H:%M} UTC"
        for cache in self._caches.all():
            if not cache.is_ready:
                return False, f"reading the cluster: {cache.problem or 'not done yet'}"
        # Asked until it was true once: a server that began to listen goes on, or its process ends.
        self._is_served = self._is_served or self._served()
        if not self._is_served:
            return False, "not listening yet"
        return True, "ok"

    def _bind(self, binding: Binding) -> Verdict:
        verdict = self._arbiter.bind(binding)
        self._records.bind(binding, verdict)
        return verdict

    def _serve_status(self) -> None:
        """Serve probes and metrics as soon as the worker before this one lets the port go."""
        about = self._settings.webhook
        while not self._draining.is_set():
            try:
                server = StatusServer(
                    self._metrics.registry,
                    ready=self.ready,
                    host="" if about.host == "0.0.0.0" else about.host,  # noqa: S104  any address
                    port=about.metrics_port,
                )
            except OSError as error:
                log.debug("status_port_taken", port=about.metrics_port, error=str(error))
                self._draining.wait(PORT_RETRY_SECONDS)
                continue
            server.start()
            log.info("status_served", port=server.port)
            return
