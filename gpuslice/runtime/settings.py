# SPDX-License-Identifier: Apache-2.0
"""The settings: one YAML file for the whole cluster, read by both halves.

What is not named has its default, so an empty file is a good one. An unknown key is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from gpuslice.contract import names
from gpuslice.contract.shares import Share, parse_share
from gpuslice.contract.slices import SliceBy, SliceRule
from gpuslice.runtime import setting_faults
from gpuslice.runtime.plugin_settings import DevicePlugin, Hints, Mode
from gpuslice.runtime.setting_faults import SettingsError
from gpuslice.runtime.setting_sections import (
    DOMAIN,
    Amount,
    Count,
    Name,
    Port,
    ResourceText,
    Seconds,
    Section,
)

__all__ = [
    "Arbiter",
    "DevicePlugin",
    "Hints",
    "Log",
    "Settings",
    "SettingsError",
    "Webhook",
    "load",
]

SIDECARS: Final = (
    "istio-proxy",
    "linkerd-proxy",
    "envoy",
    "vault-agent",
    "cloud-sql-proxy",
    "fluent-bit",
    "otc-container",
)


class Log(Section, frozen=True, kw_only=True):
    """What is written about, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is written: info has what an operator cares about, debug each request."""
    format: Literal["auto", "json", "console"] = "auto"
    """auto: console on a terminal, else JSON."""


class Arbiter(Section, frozen=True, kw_only=True):
    """How the arbiter answers a bind."""

    wait_milliseconds: Amount = 500
    """Before a denial that a claim on its way out may spare; a denied pod waits 1.5 s and more."""
    ledger_wait_seconds: Seconds = 2.0
    """For the Node to show the new claim. Longer than this: the claim is taken back, and denied."""
    rise_hold_milliseconds: Amount = 50
    """After a rise of a fit: kubelet's own copy of its Node may lag by that much."""
    max_waiters: Count = 16
    """Binds that wait at once; more are denied at once."""


class Webhook(Section, frozen=True, kw_only=True):
    """The webhook's server."""

    host: str = "0.0.0.0"  # noqa: S104 - the API server calls from outside the pod
    """The address to listen on."""
    port: Port = 9443
    """Of admission and placement, over TLS."""
    metrics_port: Port = 9404
    """Of /metrics, /healthz and /readyz, over plain HTTP."""
    certificate_mode: Literal["self", "files"] = "self"
    """self: an own authority, kept in a Secret. files: from `certificateDir`, renewed by others."""
    certificate_dir: str = "/etc/gpuslice/tls"
    """Has tls.crt and tls.key."""
    namespace: str = ""
    """Of the service and the Secret; empty for the pod's own."""
    service_name: Name = "gpuslice-webhook"
    """The certificate bears its name."""
    secret_name: Name = "gpuslice-webhook-tls"  # noqa: S105 - a name
    """Where the authority and the certificate are kept with `certificateMode: self`."""
    configuration_name: Name = "gpuslice"
    """Of the webhook configurations whose caBundle is kept."""
    drain_seconds: Seconds = 10.0
    """After SIGTERM it goes on to serve, until all know that it is going."""
    max_body_mib: Count = 8
    """Larger requests are refused; the API server sends none above 3 MiB or so."""


class Settings(Section, frozen=True, kw_only=True):
    """All of the file."""

    resource_name: ResourceText = names.SLICE_RESOURCE
    """The resource that kubelet counts slices as. The webhook configuration names it too."""
    slice_by: Literal["fraction", "memory"] = "fraction"
    """What a slice is: 1/N of a GPU, or an amount of memory."""
    slices_per_gpu: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """N with `sliceBy: fraction`: a number of factors 2 and 5."""
    slice_memory_mib: Count = 1024
    """One slice with `sliceBy: memory`."""
    min_share_mib: Count = 128
    """The smallest memory share."""
    default_gpu_memory_mib: Count = 81920
    """A GPU's memory where the cluster knows none yet. Too much does no harm: slices only count."""
    shares: tuple[str, ...] = ("0.1", "0.125", "0.2", "0.25", "0.5", "0.75", "1")
    """Those whose fits every node shows from the start; others come with their first pod."""
    max_shares: Annotated[int, Meta(ge=1, le=1000)] = 64
    """In use at once, with a fit of their own."""
    share_idle_seconds: Seconds = 600.0
    """A share that no pod has used for so long loses its fit."""
    gpu_sharing: bool = True
    """Off: pods that ask for a share are refused."""
    adopt_schedulers: tuple[str, ...] = ()
    """Pods of these schedulers that ask for a share become `schedulerName`'s."""
    scheduler_name: str = "default-scheduler"
    """The scheduler that adopted pods are given to."""
    whole_gpu_resource: Annotated[
        str,
        Meta(
            pattern=rf"^({DOMAIN}/[A-Za-z0-9]([-\w.]{{0,61}}[A-Za-z0-9])?)?$",
            description="a resource's name with its domain, or empty",
            examples=[names.WHOLE_GPU_RESOURCE],
        ),
    ] = ""
    """Pods that ask for this resource get whole GPUs of ours; empty: they are left alone."""
    placement: Literal["pack", "spread"] = "pack"
    """Which GPU: the fullest that has room, or the emptiest. A pod's annotation comes first."""
    mode: Mode = "time-slicing"
    """How GPUs are shared: in turns and unlimited, or limited by CUDA's multi-process service or by
    HAMi-core's library."""
    arbiter_failure_policy: Literal["Ignore", "Fail"] = "Ignore"
    """While no arbiter answers: pods are bound without it (and may fail on a full GPU), or wait.

    It stands in the webhook configuration too, where the API server reads it.
    """
    reservation_seconds: Annotated[float, Meta(ge=60)] = 120.0
    """A claim whose bind never came ends after this; longer than any API request lives."""
    force_deleted_seconds: Seconds = 10.0
    """A force-deleted pod's memory stays claimed: kubelet kills its processes after 2 s."""
    sidecar_containers: tuple[str, ...] = SIDECARS
    """Never given the share where the pod names no container."""
    runtime_class_name: str = ""
    """For sharing pods that have none."""
    hide_other_gpus: bool = False
    """The containers of a sharing pod that have no share get ``NVIDIA_VISIBLE_DEVICES=void``.

    Where the NVIDIA runtime is the default, an image made for CUDA sees every GPU without it.
    """
    template_warnings: bool = True
    """Check Deployments and the like when they are applied, as warnings."""
    hints: Hints = Hints()
    arbiter: Arbiter = Arbiter()
    device_plugin: DevicePlugin = DevicePlugin()
    webhook: Webhook = Webhook()
    log: Log = Log()

    def __post_init__(self) -> None:
        setting_faults.check(self)

    @property
    def slice_rule(self) -> SliceRule:
        """How GPUs are cut."""
        return SliceRule(
            slice_by=SliceBy(self.slice_by),
            slices_per_gpu=self.slices_per_gpu,
            slice_memory_mib=self.slice_memory_mib,
        )

    @property
    def standing_shares(self) -> tuple[Share, ...]:
        """The shares of `shares`."""
        return tuple(map(parse_share, self.shares))


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of a file.

    Args:
        path: YAML; None or an empty file for the defaults.
        overrides: values by dotted key, which win over the file's; e.g.
            ``{"devicePlugin.driverRoot": "/run/nvidia/driver"}``.

    Raises:
        SettingsError: naming the key, its value, what is allowed and an example.
    """
    content = setting_faults.read(path) if path else {}
    for key, value in (overrides or {}).items():
        setting_faults.put(content, key, value)
    setting_faults.spell_shares(content)
    try:
        return msgspec.convert(content, Settings)
    except msgspec.ValidationError as err:
        source = str(path) if path else "settings"
        raise setting_faults.explained(err, content, Settings, source) from err
