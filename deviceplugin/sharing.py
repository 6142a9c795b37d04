# SPDX-License-Identifier: Apache-2.0
"""How this node's GPUs are shared and brought into containers, by the newest settings."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from deviceplugin import cdi, policies
from deviceplugin.cdi import CdiFile
from deviceplugin.devicefiles import DeviceFiles
from deviceplugin.diagnosis import Care
from deviceplugin.health import HealthSettings
from deviceplugin.injection import Injection, ModeRules
from deviceplugin.inventory import Inventory
from deviceplugin.mps.keeper import ComputeModes
from deviceplugin.mps.supervisor import Supervisor
from deviceplugin.policies import Override, Policies, Policy
from gpuslice.contract.names import GpuUuid
from gpuslice.runtime.settings import DevicePlugin as PluginSettings
from gpuslice.runtime.settings import Settings


def policies_of(settings: Settings) -> Policies:
    """Return what the settings say of GPUs, in terms that need no file."""
    own = settings.device_plugin
    return Policies(
        base=Policy(
            mode=settings.mode,
            injection=own.device_injection,
            ignored_xids=frozenset(own.ignored_xids),
            recovery_seconds=own.health_recovery_seconds,
        ),
        overrides=tuple(
            Override(
                nodes=frozenset(each.nodes),
                node_labels=each.node_labels,
                uuids=frozenset(each.uuids),
                indexes=frozenset(each.indexes),
                models=frozenset(each.models),
                mode=each.mode,
                injection=each.device_injection,
                ignored_xids=None if each.ignored_xids is None else frozenset(each.ignored_xids),
                recovery_seconds=each.health_recovery_seconds,
            )
            for each in own.overrides
        ),
    )


def files_of(own: PluginSettings) -> DeviceFiles:
    """Return the node's files."""
    return DeviceFiles(
        dev_root=Path(own.dev_root),
        proc_root=Path(own.proc_root),
        driver_root=Path(own.driver_root),
        host_driver_root=Path(own.host_driver_root or own.driver_root),
    )


def health_settings(
    own: PluginSettings, chosen: Mapping[GpuUuid, Policy] | None = None
) -> HealthSettings:
    """Return how closely GPUs are watched; the time to recover is counted in whole looks."""

    def looks(seconds: float) -> int:
        return max(1, math.ceil(seconds / own.health_poll_seconds))

    return HealthSettings(
        ignored_xids=frozenset(own.ignored_xids),
        poll_seconds=own.health_poll_seconds,
        recover_after_reads=looks(own.health_recovery_seconds),
        special=Care(
            ignored_xids={uuid: policy.ignored_xids for uuid, policy in (chosen or {}).items()},
            needed={uuid: looks(each.recovery_seconds) for uuid, each in (chosen or {}).items()},
        ),
    )


class Sharing:
    """Puts settings, node and GPUs together, and what follows into effect."""

    def __init__(
        self,
        node: str,
        settings: Settings,
        driver: ComputeModes,
        *,
        later: Callable[[str, Callable[[], None]], None],
        on_change: Callable[[], None],
    ) -> None:
        """Be ready for the first look at the GPUs.

        Args:
            node: this one's name.
            settings: the cluster's.
            driver: sets compute modes, for MPS.
            later: has something done soon, by its name, in order, in another thread.
            on_change: told of each change of `problems`.
        """
        own = settings.device_plugin
        self._node = node
        self._later = later
        self._lock = threading.Lock()
        self._settings = settings
        self._labels: Mapping[str, str] = {}
        self._inventory = Inventory()
        self._files = files_of(own)
        self._cdi = CdiFile(Path(own.cdi_dir))
        self._cdi_problem = ""
        self.mps = Supervisor(driver, Path(own.mps.root), own.mps.control, on_change=on_change)
        self._policies: Mapping[GpuUuid, Policy] = {}
        self._injection = Injection(hints=settings.hints.frameworks)
        self.on_health: Callable[[HealthSettings], None] = lambda _: None

    # --- what others ask

    @property
    def injection(self) -> Injection:
        """What goes into containers now."""
        with self._lock:
            return self._injection

    @property
    def mode(self) -> str:
        """The node's mode in one word."""
        with self._lock:
            return policies.mode_of(self._policies.values(), otherwise=self._settings.mode)

    @property
    def problems(self) -> dict[str, str]:
        """What stands in the way, by what it is."""
        return {"cdi": self._cdi_problem, "mps": self.mps.problem}

    # --- what changes

    def use(self, settings: Settings) -> None:
        """Go by other settings from now on; containers that run keep what they have."""
        with self._lock:
            self._settings = settings
        self._renew()

    def see_labels(self, labels: Mapping[str, str]) -> None:
        """Take note of the node's labels."""
        with self._lock:
            if labels == self._labels:
                return
            self._labels = dict(labels)
        self._renew()

    def see(self, inventory: Inventory) -> None:
        """Take note of the node's GPUs."""
        with self._lock:
            self._inventory = inventory
        self._renew()

    def stop(self) -> None:
        """End what was started."""
        self.mps.stop()

    def _renew(self) -> None:
        with self._lock:
            settings, inventory = self._settings, self._inventory
            own = settings.device_plugin
            chosen = policies_of(settings).of_all(inventory, node=self._node, labels=self._labels)
            self._policies = chosen
            self._injection = Injection(
                hints=settings.hints.frameworks,
                policies=chosen,
                inventory=inventory,
                files=self._files,
                modes=ModeRules(
                    mps_memory_limit=own.mps.memory_limit,
                    mps_thread_limit=own.mps.thread_limit,
                    hami_library=own.hami_core.library,
                    hami_core_limit=own.hami_core.core_limit,
                    pipes_of=lambda uuid: str(self.mps.pipes_of(uuid)),
                    shared_memory=str(self.mps.shared_memory),
                ),
            )
            if any(policy.injection == policies.CDI for policy in chosen.values()):
                self._cdi_problem = self._cdi.write(cdi.spec_of(inventory, self._files))
            else:
                self._cdi_problem = ""
                self._cdi.remove()
            shared = [gpu for gpu in inventory.gpus if chosen[gpu.uuid].mode == policies.MPS]
        self.on_health(health_settings(own, chosen))
        self._later("mps", lambda: self.mps.keep(shared))
