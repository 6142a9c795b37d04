# SPDX-License-Identifier: Apache-2.0
"""One node's device plugin and agent, put together; the order of start and end is written here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from deviceplugin import checkpoint, reloading, telling
from deviceplugin.agent import Agent
from deviceplugin.allocation import Grant
from deviceplugin.allocator import Allocator
from deviceplugin.caches import Caches
from deviceplugin.collectors import LedgerCollector, MpsCollector, UseCollector
from deviceplugin.devices import DeviceBoard
from deviceplugin.driver import Cause
from deviceplugin.errands import Errands
from deviceplugin.folderwatch import FolderWatch
from deviceplugin.health import Driver, HealthMonitor
from deviceplugin.inventory import Inventory, MigUse
from deviceplugin.judgement import Judge
from deviceplugin.mps.keeper import ComputeModes
from deviceplugin.nvml import Nvml
from deviceplugin.patience import Limits
from deviceplugin.podresources import PodResources
from deviceplugin.publisher import Publisher
from deviceplugin.readback import Readback, Tempo
from deviceplugin.records import Records
from deviceplugin.registration import Pace, Registrar
from deviceplugin.rules import Rules
from deviceplugin.server import DevicePlugin, PluginServer
from deviceplugin.sharing import Sharing, health_settings
from deviceplugin.sickness import Sickness
from deviceplugin.telling import Reporter
from deviceplugin.usewatch import Processes, UseWatch
from gpuslice.contract import pods
from gpuslice.contract.ledger import Ledger
from gpuslice.contract.names import NodeName, ResourceName
from gpuslice.runtime import logs
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.events import EventRecorder
from gpuslice.runtime.metrics import Metrics
from gpuslice.runtime.settings import Settings

log = logs.get(__name__)

COMPONENT: Final = "gpuslice.dev/device-plugin"
DRAIN_SECONDS: Final = 20.0
"""For kubelet to take up the pods that are bound already: within a pod's 30 s to end."""
FIRST_LOOK_SECONDS: Final = 15.0
"""A driver without persistence mode takes seconds to wake its GPUs."""


def rules_of(settings: Settings, mode: str) -> Rules:
    """Return what the agent goes by; `mode` is the node's."""
    return Rules(
        resource=ResourceName(settings.resource_name),
        slice_rule=settings.slice_rule,
        shares=settings.standing_shares,
        default_gpu_memory_mib=settings.default_gpu_memory_mib,
        mode=mode,
        limits=Limits(
            pod_gone=settings.force_deleted_seconds, reservation=settings.reservation_seconds
        ),
        reconcile_seconds=settings.device_plugin.reconcile_seconds,
    )


class Hardware(Driver, ComputeModes, Processes, Protocol):
    """The driver, for all that this process needs of it."""


class Daemon:
    """All threads of one device plugin."""

    def __init__(
        self,
        node: NodeName,
        settings: Settings,
        client: KubeClient,
        metrics: Metrics,
        *,
        driver: Hardware | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Put the parts together; nothing runs yet.

        Args:
            node: this one.
            settings: the cluster's.
            client: reaches the API server, or will.
            metrics: where this one's are registered.
            driver: the hardware; None for NVML under the settings' driver root.
            pace: how registration waits.
        """
        self.metrics = metrics
        own, clock = settings.device_plugin, time.monotonic
        self._clock, self._begun = clock, clock()
        self._labels: Mapping[str, str] = {}
        self.on_outdated: Callable[[], None] = lambda: None
        resource = ResourceName(settings.resource_name)
        self.board = DeviceBoard()
        self.allocator = Allocator(Ledger(node=node, gpus=(), serving=False), clock=clock)
        self._driver = driver or Nvml(Path(own.driver_root), mig=MigUse(own.mig))
        self.monitor = HealthMonitor(
            self._driver,
            settings=health_settings(own),
            on_change=lambda _: self._on_inventory(),
            on_problem=self._on_driver_problem,
        )
        folder = own.plugin_path
        self._pod_resources = PodResources(own.pod_resources_path, resource)
        self.readback = Readback(
            lambda: checkpoint.read(folder / checkpoint.FILE_NAME, resource),
            self._pod_resources,
            is_granting=lambda: bool(self.allocator.view.in_flight),
            on_change=self._on_change,
            clock=clock,
            on_problem=lambda problem: log.warning("kubelet_not_read", error=problem),
            tempo=Tempo(idle=own.reconcile_seconds),
        )
        self._errands = Errands()
        self._settings = settings
        self.sharing = Sharing(
            node, settings, self._driver, later=self._errands.send, on_change=self._on_sharing
        )
        self.sharing.on_health = self.monitor.adjust
        self._recorder = EventRecorder(client, component=COMPONENT, instance=node)
        self._reporter = Reporter(node, metrics, self._recorder)
        metrics.collect_with(LedgerCollector(node, self.allocator, lambda: self.board.streaming))
        self._sickness = Sickness(self._reporter)
        metrics.collect_with(MpsCollector(node, lambda: self.sharing.mps.states))
        self.caches = Caches(client, node, on_change=self._on_change)
        self.use_watch = UseWatch(
            self._driver,
            Path(own.proc_root),
            claims=lambda: self.allocator.view.ledger.claims,
            pods=self.caches.pods_by_uid,
            on_over=self._reporter.over,
            every_seconds=own.use_poll_seconds,
        )
        if own.watch_use:
            metrics.collect_with(UseCollector(node, lambda: self.use_watch.uses))
        records, rules = Records(client, node), rules_of(settings, settings.mode)
        self.judge = Judge(
            node,
            rules,
            records=records,
            caches=self.caches,
            allocator=self.allocator,
            board=self.board,
            readback=self.readback,
            inventory=self._inventory,
            recall=self.monitor.recall,
            is_starting=self._is_starting,
            clock=clock,
        )
        self.agent = Agent(
            rules,
            judge=self.judge,
            publisher=Publisher(rules, records, self.caches, self._reporter),
            records=records,
            caches=self.caches,
            readback=self.readback,
            errands=self._errands,
            forget_retired=lambda claimed: self.monitor.forget_retired(claimed=claimed),
            clock=clock,
            telling=self._reporter,
        )

        def new_server(socket: Path) -> PluginServer:
            servicer = DevicePlugin(
                self.board, self.allocator, lambda: self.sharing.injection, self._reporter
            )
            return PluginServer(servicer, self.board, socket)

        self.registrar = Registrar(
            folder, resource, self.board, new_server, pace=pace, on_event=self._on_registration
        )
        self._folder_watch = FolderWatch(folder, self._on_folder)
        self.board.on_streaming = self._on_streaming
        self.allocator.look_again = self.judge.look_again
        self.allocator.on_grant = self._on_grant

    # --- life

    def start(self) -> None:
        """Begin: what kubelet needs first, and nothing waits for the API server."""
        self.monitor.start()
        self.readback.start()
        self.registrar.start()
        self._folder_watch.start()
        self._recorder.start()
        self._errands.start()
        self.caches.start()
        self.agent.start()
        if self._settings.device_plugin.watch_use:
            self.use_watch.start()

    def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """End in the order that fails no pod: first nobody counts on us, then we go."""
        if not self.agent.drain(drain_seconds):
            log.warning("drain_incomplete", seconds=drain_seconds, problem=self.agent.problem)
        self.registrar.stop()
        self.agent.stop()
        self.use_watch.stop()
        self._errands.stop()
        self.sharing.stop()
        self._recorder.stop()
        self.caches.stop()
        self._folder_watch.stop()
        self.readback.stop()
        self._pod_resources.close()
        self.monitor.stop()

    def reload(self, settings: Settings) -> None:
        """Go by other settings, as far as that goes without a restart; claims stay as they are."""
        chosen, kept = reloading.reloaded(self._settings, settings)
        if kept:
            log.warning("settings_need_restart", keys=kept)
        self._settings = chosen
        self.sharing.use(chosen)
        self._on_sharing()
        log.info("settings_reloaded")

    def ready(self) -> tuple[bool, str]:
        """Return whether kubelet can use this plugin, and all that it waits for."""
        return telling.state_of(self.problems, ready=self.board.streaming)

    def healthy(self) -> tuple[bool, str]:
        """Return whether the threads that nothing replaces are alive."""
        dead = [
            name
            for name, part in (("registration", self.registrar), ("agent", self.agent))
            if not part.is_alive
        ]
        return not dead, f"dead: {', '.join(dead)}" if dead else "ok"

    @property
    def problems(self) -> dict[str, str]:
        """What this plugin waits for, by what it is; empty when all is well."""
        said = {
            "driver": self.monitor.problem,
            "kubelet": "" if self.board.streaming else "kubelet has no stream open",
            "api-server": self.agent.problem,
            **self.sharing.problems,
        }
        return {what: problem for what, problem in said.items() if problem}

    # --- what wakes what

    def _inventory(self) -> Inventory | None:
        return self.monitor.inventory if self.monitor.wait_ready(0) else None

    def _is_starting(self) -> bool:
        since = self._clock() - self._begun
        return not self.monitor.problem and since < FIRST_LOOK_SECONDS

    def _on_driver_problem(self, problem: str, cause: Cause | None) -> None:
        self._reporter.waits("driver", problem)
        if cause is Cause.MISMATCH and isinstance(self._driver, Nvml) and self._driver.is_outdated:
            # A process can't load a second libnvidia-ml: the next one will load the new file.
            log.warning("driver_was_replaced", problem=problem)
            self.on_outdated()
        self.agent.wake()

    def _on_sharing(self) -> None:
        for what, problem in self.sharing.problems.items():
            self._reporter.waits(what, problem)
        self.agent.use(rules_of(self._settings, self.sharing.mode))

    def _on_change(self) -> None:
        node = self.caches.node
        if node is not None:
            self._on_labels(pods.meta_of(node).get("labels") or {})
        self._sickness.see(self.allocator.view.ledger)
        self.agent.wake()

    def _on_labels(self, labels: Mapping[str, str]) -> None:
        if labels != self._labels:
            self._labels = dict(labels)
            self.sharing.see_labels(labels)
            self._on_sharing()

    def _on_inventory(self) -> None:
        self.sharing.see(self.monitor.inventory)
        self._on_sharing()
        # Here and now: the agent's own thread may be waiting for the API server.
        self.judge.decide()
        self._sickness.see(self.allocator.view.ledger)
        self.registrar.wake()
        self.agent.wake()

    def _on_streaming(self) -> None:
        self.registrar.wake()
        self.agent.wake()

    def _on_folder(self) -> None:
        self.registrar.wake()
        self.readback.wake()

    def _on_grant(self, grant: Grant) -> None:
        log.info(
            "slices_allocated",
            share=str(grant.share),
            slices=len(grant.tokens),
            gpu_uuid=[part.gpu for part in grant.shape],
        )
        self.readback.wake()

    def _on_registration(self, event: str, detail: str) -> None:
        self._reporter.registration(event)
        if event == "registered":
            log.info("registered", socket=detail)
            self._reporter.waits("kubelet", "")
        else:
            self._reporter.waits("kubelet", f"{event}: {detail}")
            log.warning("not_registered", cause=event, detail=detail)
