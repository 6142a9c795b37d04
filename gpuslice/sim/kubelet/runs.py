# SPDX-License-Identifier: Apache-2.0
"""A pod's containers as timers: which runs, which ended, which is next. No clock, no I/O.

Times are seconds of the owner's clock. Init containers run one after the other; a sidecar needs
only to have started. A container of a pod with restartPolicy Always starts again when it
ends, without the real kubelet's growing pauses; with any other policy it doesn't, since every end
by itself is a success. An init container without ``sleep`` ends at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from gpuslice.contract import pods
from gpuslice.contract.pods import Json
from gpuslice.sim.kubelet import containers

KILLED_EXIT_CODE: Final = 137
RESTART_SECONDS: Final = 0.1
"""This lies between the end of a container and its next start: ``sleep 0`` must not spin."""

Kind = Literal["init", "sidecar", "app"]


@dataclass(slots=True, kw_only=True)
class ContainerRun:
    """One container and its latest run."""

    spec: Json
    kind: Kind
    started_at: float | None = None
    ends_at: float | None = None
    """When it ends by itself; None while it hasn't started, or if it never does."""
    ended_at: float | None = None
    exit_code: int = 0
    restarts: int = 0
    trouble: str = ""
    """Why it couldn't start."""

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.spec.get("name"))

    @property
    def is_running(self) -> bool:
        """Whether its process is alive."""
        return self.started_at is not None and self.ended_at is None


@dataclass(slots=True, kw_only=True)
class PodRun:
    """A pod that kubelet has admitted, as the container runtime knows it."""

    pod: Json
    begins_at: float
    """When the next container may start."""
    speed: float = 1.0
    parts: tuple[ContainerRun, ...] = field(default=())
    stopped: bool = False
    """No container starts any more."""

    def __post_init__(self) -> None:
        spec = pods.spec_of(self.pod)
        init: Iterable[Json] = spec.get("initContainers") or ()
        self.parts = (
            *(
                ContainerRun(
                    spec=each, kind="sidecar" if each.get("restartPolicy") == "Always" else "init"
                )
                for each in init
            ),
            *(ContainerRun(spec=each, kind="app") for each in spec.get("containers") or ()),
        )

    @property
    def restarts_always(self) -> bool:
        """Whether its app containers start again when they end."""
        return (pods.spec_of(self.pod).get("restartPolicy") or "Always") == "Always"

    @property
    def apps(self) -> tuple[ContainerRun, ...]:
        """Its app containers."""
        return tuple(part for part in self.parts if part.kind == "app")

    @property
    def running(self) -> tuple[ContainerRun, ...]:
        """Its containers that run."""
        return tuple(part for part in self.parts if part.is_running)

    @property
    def has_trouble(self) -> bool:
        """Whether a container couldn't start."""
        return any(part.trouble for part in self.parts)

    @property
    def has_ended(self) -> bool:
        """Whether its last process is gone, for good."""
        if self.running:
            return False
        return self.stopped or (
            not self.restarts_always and all(part.ended_at is not None for part in self.apps)
        )

    @property
    def phase(self) -> str:
        """The phase that its status should show."""
        if self.has_ended:
            clean = all(part.ended_at is not None and not part.exit_code for part in self.apps)
            return "Succeeded" if clean else "Failed"
        return "Running" if any(part.started_at is not None for part in self.apps) else "Pending"

    def next_to_start(self, now: float) -> ContainerRun | None:
        """Return the container to be started now, None where nothing is to be started."""
        if self.stopped or now < self.begins_at:
            return None
        for part in self.parts:
            if part.started_at is None:
                return part
            if part.kind == "init" and part.ended_at is None:
                return None
            if part.ended_at is not None and self._starts_again(part):
                return part
        return None

    def _starts_again(self, part: ContainerRun) -> bool:
        return part.kind == "sidecar" or (part.kind == "app" and self.restarts_always)

    def start(self, part: ContainerRun, now: float) -> None:
        """Start a container, for the first time or again."""
        if part.started_at is not None:
            part.restarts += 1
        seconds = containers.run_seconds(part.spec)
        if seconds is None and part.kind == "init":
            seconds = 0.0
        part.started_at, part.ended_at, part.trouble = now, None, ""
        part.ends_at = None if seconds is None else now + seconds / self.speed

    def fail_to_start(self, part: ContainerRun, trouble: str, retry_at: float) -> None:
        """Take note of why a container couldn't start, and when it is tried again."""
        part.trouble = trouble
        self.begins_at = retry_at

    def end_due(self, now: float) -> tuple[ContainerRun, ...]:
        """End the containers whose time is over, and the sidecars after the last app container.

        Returns:
            Those that ended.
        """
        due = [part for part in self.running if part.ends_at is not None and part.ends_at <= now]
        for part in due:
            part.ended_at = part.ends_at
            if self._starts_again(part):
                self.begins_at = now + RESTART_SECONDS
        apps_done = not self.restarts_always and all(
            part.ended_at is not None for part in self.apps
        )
        if apps_done:
            self.stopped = True
            for part in self.running:
                part.ended_at = now
                due.append(part)
        return tuple(due)

    def kill(self, now: float) -> tuple[ContainerRun, ...]:
        """End all containers and start none any more; return those that ran."""
        self.stopped = True
        ran = self.running
        for part in ran:
            part.ended_at, part.exit_code = now, KILLED_EXIT_CODE
        return ran

    def next_due(self) -> float | None:
        """Return when something happens by itself, None where nothing does."""
        times = [part.ends_at for part in self.running if part.ends_at is not None]
        if not self.stopped and self.next_to_start(self.begins_at) is not None:
            times.append(self.begins_at)
        return min(times, default=None)
