# SPDX-License-Identifier: Apache-2.0
"""Bugs of the real kubelet that a plugin must survive, and its timings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """Which kubelet it is; the defaults are Kubernetes 1.36's."""

    old_stream_ends_new_plugin: bool = True
    """kubernetes/kubernetes#127803, up to 1.36: when the ListAndWatch stream of an earlier
    registration ends, the resource's present plugin is disconnected."""
    runtime_starts_late: bool = False
    """The container runtime comes up after kubelet, which then registers its Node before it makes
    its plugin socket. Only so can a kubelet that lost its checkpoint zero all extended resources:
    it does that when the plugin folder is empty, and the socket counts as a file too."""
    endpoint_grace_seconds: float = 300.0
    """For how long the capacity of a plugin that went away is kept."""
    release_delay_seconds: tuple[float, float] = (0.002, 0.114)
    """How long after a pod's last phase kubelet lets its devices go: least, most."""
    pod_resources_qps: float = 100.0
    """How many calls a second PodResources answers in the long run."""
    pod_resources_burst: int = 10
    """How many calls PodResources answers at once."""
