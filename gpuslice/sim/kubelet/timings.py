# SPDX-License-Identifier: Apache-2.0
"""How long what takes in an embedded kubelet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds, but for `speed`.

    The defaults are a real kubelet's, or short where only containers would be waited for.
    """

    status_interval_seconds: float = 10.0
    """How often the node's status is compared with the API server's, and written if it differs."""
    push_on_change: bool = False
    """Whether a change of devices is written at once; the real one waits for the interval."""
    node_lag_seconds: float = 0.0
    """How much later than the API server kubelet's own copy of its Node is, beside the watch."""
    batch_seconds: float = 0.02
    """Pods that arrive within this time are admitted in random order."""
    start_seconds: float = 0.05
    """From admission to the start of the first container."""
    stop_seconds: float = 0.05
    """How long a container takes to end after SIGTERM; never above the pod's grace period."""
    kill_seconds: float = 2.0
    """How long the processes of a pod live that was deleted by force."""
    retry_seconds: float = 10.0
    """When a container that couldn't start is tried again."""
    speed: float = 1.0
    """How many seconds of a container's ``sleep`` pass in one."""
