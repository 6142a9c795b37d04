# SPDX-License-Identifier: Apache-2.0
"""The settings of the device plugin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from gpuslice.runtime.setting_sections import Amount, Period, Port, Seconds, Section

Mode = Literal["time-slicing", "mps", "hami-core"]
Means = Literal["environment", "cdi", "device-nodes"]


class Hints(Section, frozen=True, kw_only=True):
    """Which frameworks are told of their share, where their own environment variables help."""

    jax: bool = True
    """XLA_PYTHON_CLIENT_MEM_FRACTION"""
    tensorflow: bool = True
    """TF_FORCE_GPU_ALLOW_GROWTH"""
    pytorch: bool = False
    """PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: less is lost to fragmentation, but memory
    can't be handed to another process."""

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The names of those that are switched on."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name))


class Mps(Section, frozen=True, kw_only=True):
    """How CUDA's multi-process service shares a GPU."""

    root: str = "/run/gpuslice/mps"
    """Pipes and logs, by GPU; containers get their GPU's pipes from here, so it must be the same
    path on the node as in this process."""
    control: str = "nvidia-cuda-mps-control"
    """The control program: a name that is looked up, or a path."""
    memory_limit: bool = True
    """Whether a container's CUDA processes are held to the share's memory, each of them."""
    thread_limit: bool = True
    """Whether they are held to the share's part of the GPU's cores, even while it is idle."""


class HamiCore(Section, frozen=True, kw_only=True):
    """How HAMi-core's library, which you bring, holds a container to its share."""

    library: str = ""
    """Where libvgpu.so is on every node."""
    core_limit: bool = True
    """Whether cores are limited as well as memory."""


class Override(Section, frozen=True, kw_only=True):
    """What differs for some nodes or GPUs. What it names must all be so; a later one wins."""

    nodes: tuple[str, ...] = ()
    """Names."""
    node_labels: Mapping[str, str] = {}
    uuids: tuple[str, ...] = ()
    indexes: tuple[Amount, ...] = ()
    models: tuple[str, ...] = ()
    """E.g. ``NVIDIA L4``, as `kubectl get gpunodes -o yaml` shows it."""
    mode: Mode | None = None
    device_injection: Means | None = None
    ignored_xids: tuple[Amount, ...] | None = None
    health_recovery_seconds: Seconds | None = None


class DevicePlugin(Section, frozen=True, kw_only=True):
    """One node's device plugin and agent."""

    driver_root: str = "/"
    """Where the NVIDIA driver's files are, as this process sees them."""
    host_driver_root: str = ""
    """Where they are on the node; empty for the same path."""
    dev_root: str = "/dev"
    """Where the node's device files are, as this process sees them."""
    proc_root: str = "/proc"
    """The node's processes, as this process sees them."""
    kubelet_root: str = "/var/lib/kubelet"
    plugin_dir: str = ""
    """Where kubelet.sock is; empty for ``device-plugins`` under the kubelet's root."""
    metrics_port: Port = 9402
    mig: Literal["use", "skip"] = "use"
    """use: the instances of a GPU in MIG mode are GPUs of their own. skip: left to others."""
    ignored_xids: tuple[Amount, ...] = (13, 31, 43, 45, 68, 109)
    """Faults of applications, not of GPUs."""
    health_poll_seconds: Period = 5.0
    health_recovery_seconds: Seconds = 15.0
    """A sick GPU must look well for so long before it counts as well."""
    on_unhealthy: Literal["observe"] = "observe"
    device_injection: Means = "environment"
    """How a container gets its GPU: by the NVIDIA runtime, by CDI names, or as plain devices."""
    cdi_dir: str = "/var/run/cdi"
    """Where the CDI spec is written."""
    watch_use: bool = False
    """Compare what containers use with what they claim; needs the node's process ids."""
    use_poll_seconds: Period = 15.0
    reconcile_seconds: Period = 60.0
    """Between two comparisons of the ledger with kubelet's checkpoint."""
    mps: Mps = Mps()
    hami_core: HamiCore = HamiCore()
    overrides: tuple[Override, ...] = ()

    @property
    def plugin_path(self) -> Path:
        """The folder of kubelet.sock and of our own sockets."""
        return Path(self.plugin_dir or Path(self.kubelet_root) / "device-plugins")

    @property
    def pod_resources_path(self) -> Path:
        """The socket that tells which pod has which tokens."""
        return Path(self.kubelet_root) / "pod-resources" / "kubelet.sock"
