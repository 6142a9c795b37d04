# SPDX-License-Identifier: Apache-2.0
"""One node of an embedded cluster: a machine with GPUs, its kubelet, and the real device plugin."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.sim.apiserver.server import ApiServer
from gpuslice.sim.kubelet.kubelet import Kubelet
from gpuslice.sim.kubelet.remote import RemoteApi
from gpuslice.sim.kubelet.timings import Timings
from gpuslice.sim.nvml.driver_root import DriverRoot
from gpuslice.sim.nvml.machine import MIB, Machine, MachineGpu
from gpuslice.sim.observation import HandOut, RealGpu
from gpuslice.sim.processes import Child, Processes

Json = Mapping[str, Any]

AGENT_USER: Final = "system:serviceaccount:gpuslice-nodes:gpuslice-device-plugin"
STATUS_SECONDS: Final = 0.5
"""A real kubelet writes its node's devices every 10 s; a demo has no time for that."""
REGISTER_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all nodes of a cluster stand on."""

    folder: Path
    """Short: sockets lie below it."""
    server: ApiServer
    processes: Processes
    library: Path
    """The built libnvidia-ml.so.1."""
    slice_resource: str
    plugin_arguments: tuple[str, ...]
    """Flags of every device plugin, such as ``--settings``."""
    rng: Random


def gpu_uuid(node: str, index: int) -> str:
    """Return the UUID of a GPU: the same in every run."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'gpu-{index}.{node}.gpuslice.dev')}"


class Host:
    """One machine."""

    def __init__(self, name: str, gpus: int, ground: Ground) -> None:
        """Lay out the machine and its kubelet; nothing runs yet."""
        self.name = name
        self._ground = ground
        folder = ground.folder / name
        machine = Machine(
            gpus=tuple(
                MachineGpu(uuid=gpu_uuid(name, index), minor_number=index) for index in range(gpus)
            )
        )
        self.driver = DriverRoot.lay_out(folder / "driver", machine, library=ground.library)
        kubeconfig = ground.server.kubeconfig(
            ground.folder / f"{name}.kubelet.kubeconfig", user=f"system:node:{name}"
        )
        self._client = KubeClient(config.load(kubeconfig), component="kubelet")
        self._root = folder / "kubelet"
        self.kubelet = Kubelet(
            node_name=name,
            root=self._root,
            api=RemoteApi(self._client),
            rng=Random(ground.rng.random()),  # noqa: S311  chance, not secrets
            timings=Timings(status_interval_seconds=STATUS_SECONDS),
        )
        self._plugin: Child | None = None

    def start(self) -> None:
        """Start kubelet and the device plugin, and wait until it has registered."""
        self.kubelet.start()
        self.start_plugin()

    def start_plugin(self) -> None:
        """Start the device plugin, and wait until it has registered."""
        ground = self._ground
        kubeconfig = ground.server.kubeconfig(
            ground.folder / f"{self.name}.plugin.kubeconfig", user=AGENT_USER
        )
        before = self.kubelet.bare.registrations
        self._plugin = ground.processes.start(
            f"device-plugin-{self.name}",
            "deviceplugin",
            (
                *("--node-name", self.name),
                *("--kubeconfig", str(kubeconfig)),
                *("--driver-root", str(self.driver.path)),
                *("--kubelet-root", str(self._root)),
                *("--metrics-port", "0"),
                *ground.plugin_arguments,
            ),
        )
        self._plugin.wait_until(
            lambda: self.kubelet.bare.registrations > before, seconds=REGISTER_SECONDS
        )

    @property
    def plugin(self) -> Child:
        """The device plugin's process."""
        assert self._plugin is not None
        return self._plugin

    def stop(self) -> None:
        """End the node's kubelet. The device plugin is ended with the other processes."""
        self.kubelet.stop()
        self._client.close()

    def real_gpus(self) -> tuple[RealGpu, ...]:
        """Return the machine's GPUs, with the memory that is for sale."""
        return tuple(
            RealGpu(
                node=self.name,
                uuid=gpu.uuid,
                memory_mib=(gpu.total_bytes - gpu.reserved_bytes) // MIB,
            )
            for gpu in self.driver.read().gpus
        )

    def hand_outs(self) -> tuple[HandOut, ...]:
        """Return what kubelet has handed out and not got back."""
        refs = {
            each["metadata"]["uid"]: each["metadata"] for each in self.kubelet.bare.active_pods()
        }
        found = []
        for uid, containers in self.kubelet.allocations().items():
            for container, devices in containers.items():
                tokens = devices.get(self._ground.slice_resource)
                if not tokens or uid not in refs:
                    continue
                about = refs[uid]
                found.append(
                    HandOut(
                        node=self.name,
                        namespace=about["namespace"],
                        pod=about["name"],
                        uid=uid,
                        container=container,
                        tokens=tuple(sorted(tokens)),
                        environment=self._environment(uid, container),
                    )
                )
        return tuple(found)

    def _environment(self, uid: str, container: str) -> Mapping[str, str]:
        try:
            return self.kubelet.bare.container_env(uid, container)
        except KeyError:  # let go since it was listed
            return {}
