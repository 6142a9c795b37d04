# SPDX-License-Identifier: Apache-2.0
"""kubelet's pod workers: they take every pod from its admission to its end.

One thread serves all pods, each when something of it is due. A pod's last phase is written first;
its devices are let go a little later, and a deleted pod leaves the API server last.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gpuslice.contract import pods
from gpuslice.contract.pods import Json
from gpuslice.sim.kubelet import statuses
from gpuslice.sim.kubelet.admission import Rejection
from gpuslice.sim.kubelet.api import ApiError, PodApi
from gpuslice.sim.kubelet.bare import BareKubelet
from gpuslice.sim.kubelet.endpoints import PluginError
from gpuslice.sim.kubelet.runs import ContainerRun, PodRun
from gpuslice.sim.kubelet.timings import Timings

log = logging.getLogger(__name__)

RETRY_API_SECONDS: Final = 0.2


@dataclass(slots=True, kw_only=True)
class Work:
    """One pod, as its worker knows it."""

    run: PodRun
    rejection: Rejection | None = None
    written: Mapping[str, Any] | None = None
    """The status that the API server has from this kubelet."""
    stop_at: float | None = None
    """When a pod that is being deleted has ended."""
    release_at: float | None = None
    """When its devices are let go: set once its last phase is written."""
    released: bool = False
    kill_at: float | None = None
    """When the processes of a pod end that is gone from the API server."""
    retry_at: float | None = None
    """When the API server is asked again that didn't answer."""


class PodWorkers:
    """The pods that have processes or are yet to be let go. Survives kubelet, as processes do."""

    def __init__(
        self,
        *,
        bare: BareKubelet,
        api: PodApi,
        node: str,
        timings: Timings,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._bare, self._api, self._node, self._timings = bare, api, node, timings
        self._monotonic = monotonic
        self._epoch = wall() - monotonic()
        self._wake = threading.Condition()
        self._works: dict[str, Work] = {}
        self._due: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to serve; what ended meanwhile is found at once."""
        self._stopping = False
        now = self._monotonic()
        with self._wake:
            for uid, work in self._works.items():
                self._end_due(work, now)
                self._schedule(uid, now)
        self._thread = threading.Thread(
            target=self._serve, name=f"workers {self._node}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; containers run on."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=1)

    def power_off(self) -> None:
        """End all processes and forget all pods: the node reboots. Only while stopped."""
        with self._wake:
            self._works.clear()
            self._due.clear()

    def end_overdue(self) -> None:
        """End the containers whose time came while no kubelet looked."""
        with self._wake:
            for work in self._works.values():
                self._end_due(work, self._monotonic())

    def admitted(self, pod: Json) -> None:
        """Run a pod, or go on with one that runs."""
        uid = pods.ref(pod).uid
        with self._wake:
            work = self._works.get(uid)
            now = self._monotonic()
            if work is None:
                begins_at = now + self._timings.start_seconds
                run = PodRun(pod=pod, begins_at=begins_at, speed=self._timings.speed)
                work = self._works[uid] = Work(run=run)
            self._see(work, pod, now)
            self._schedule(uid, now)

    def rejected(self, pod: Json, rejection: Rejection) -> None:
        """Fail a pod for good; what runs of it is ended."""
        uid = pods.ref(pod).uid
        with self._wake:
            now = self._monotonic()
            work = self._works.setdefault(uid, Work(run=PodRun(pod=pod, begins_at=now)))
            work.rejection = rejection
            self._ended(work, work.run.kill(now))
            self._see(work, pod, now)
            self._schedule(uid, now)

    def ended_before(self, pod: Json) -> None:
        """Take a pod that had ended, or was being deleted, before this kubelet saw it."""
        uid = pods.ref(pod).uid
        with self._wake:
            now = self._monotonic()
            work = self._works.setdefault(uid, Work(run=PodRun(pod=pod, begins_at=now)))
            self._ended(work, work.run.kill(now))
            if pods.has_ended(pod):
                work.written = pod.get("status") or {}
                work.release_at = now
            self._see(work, pod, now)
            self._schedule(uid, now)

    def changed(self, pod: Json) -> None:
        """Take a newer version of a pod: it may be being deleted."""
        uid = pods.ref(pod).uid
        with self._wake:
            work = self._works.get(uid)
            if work is not None:
                now = self._monotonic()
                self._see(work, pod, now)
                self._schedule(uid, now)

    def devices_changed(self) -> None:
        """Look at all pods again: their statuses show the health of their devices."""
        with self._wake:
            now = self._monotonic()
            for uid, work in self._works.items():
                if not work.released:
                    self._schedule(uid, now)

    def vanished(self, uid: str) -> None:
        """A pod is gone from the API server: it is listed nowhere from now on.

        Where that came before its processes had ended (a force deletion), they live a little more.
        """
        self._bare.release(uid)
        with self._wake:
            work = self._works.get(uid)
            if work is not None and work.kill_at is None:
                now = self._monotonic()
                work.released = True
                alive = bool(work.run.running)
                work.run.stopped = True
                work.kill_at = now + (self._timings.kill_seconds if alive else 0)
                self._schedule(uid, work.kill_at)

    def finish(self, uid: str) -> None:
        """End a pod's containers now, as if their programs were done."""
        with self._wake:
            work = self._works.get(uid)
            if work is not None:
                now = self._monotonic()
                for part in work.run.running:
                    part.ends_at = now
                self._schedule(uid, now)

    def uids(self) -> frozenset[str]:
        """Return the pods that have processes, or are yet to be let go."""
        with self._wake:
            return frozenset(self._works)

    def processes(self) -> tuple[tuple[str, str, str, str], ...]:
        """Return (pod UID, namespace, pod, container) of every process that is alive."""
        with self._wake:
            works = tuple(self._works.values())
            found = []
            for work in works:
                about = pods.ref(work.run.pod)
                names = [part.name for part in work.run.running]
                found += [(about.uid, about.namespace, about.name, name) for name in names]
        return tuple(found)

    def _see(self, work: Work, pod: Json, now: float) -> None:
        """Keep the newest version of a pod, and begin to stop it if it is being deleted."""
        work.run.pod = pod
        if pods.meta_of(pod).get("deletionTimestamp") and work.stop_at is None:
            grace = pods.meta_of(pod).get("deletionGracePeriodSeconds")
            most = self._timings.stop_seconds if grace is None else float(grace)
            running = bool(work.run.running)
            work.run.stopped = True
            work.stop_at = now + (min(self._timings.stop_seconds, most) if running else 0)

    def _schedule(self, uid: str, at: float) -> None:
        heapq.heappush(self._due, (at, next(self._order), uid))
        self._wake.notify_all()

    def _serve(self) -> None:
        while True:
            with self._wake:
                while not self._stopping:
                    left = self._due[0][0] - self._monotonic() if self._due else None
                    if left is not None and left <= 0:
                        break
                    self._wake.wait(left)
                if self._stopping:
                    return
                _, _, uid = heapq.heappop(self._due)
                work = self._works.get(uid)
            if work is not None:
                self._sync(uid, work)

    def _sync(self, uid: str, work: Work) -> None:
        """Do what is due of one pod, and say when to look again."""
        now = self._monotonic()
        if work.kill_at is not None:
            self._bury(uid, work, now)
            return
        if work.stop_at is not None and work.stop_at <= now:
            with self._wake:
                self._ended(work, work.run.kill(now))
        with self._wake:
            self._end_due(work, now)
        self._start_next(work, now)
        try:
            self._write(work, now)
            gone = self._finish(uid, work, now)
            work.retry_at = None
        except ApiError as err:
            log.info("%s: %s", pods.ref(work.run.pod), err)
            # Gone, or another of its name: the watch will say so, and `vanished` does the rest.
            gone = False
            work.retry_at = None if err.code in (404, 409) else now + RETRY_API_SECONDS
        with self._wake:
            if gone:
                self._works.pop(uid, None)
                return
            times = [work.run.next_due(), work.retry_at, work.kill_at]
            times.append(None if work.stop_at is None or work.run.has_ended else work.stop_at)
            times.append(None if work.released else work.release_at)
            due = [each for each in times if each is not None]
            if due:
                self._schedule(uid, min(due))

    def _bury(self, uid: str, work: Work, now: float) -> None:
        assert work.kill_at is not None
        with self._wake:
            if now < work.kill_at:
                self._schedule(uid, work.kill_at)
                return
            work.run.kill(now)
            del self._works[uid]

    def _start_next(self, work: Work, now: float) -> None:
        """Start what may start, one container after the other."""
        while (part := work.run.next_to_start(now)) is not None:
            try:
                self._bare.prepare_start(work.run.pod, part.spec)
            except PluginError as err:
                retry_at = now + self._timings.retry_seconds
                with self._wake:
                    work.run.fail_to_start(part, str(err), retry_at)
                return
            with self._wake:
                if work.run.stopped:
                    return
                work.run.start(part, now)
                self._bare.container_started(pods.ref(work.run.pod).uid, part.name)
                self._end_due(work, now)

    def _write(self, work: Work, now: float) -> None:
        """Write the pod's status where it has changed."""
        if work.rejection is not None:
            if (work.written or {}).get("phase") != "Failed":  # it may have run before a restart
                text = self._stamp(now)
                self._api.patch_pod_status(
                    work.run.pod, statuses.rejected(work.run.pod, work.rejection, text)
                )
                work.written = {"phase": "Failed"}
                work.release_at = now
                self._tell(work, text)
            return
        if work.written is not None and work.written.get("phase") in ("Succeeded", "Failed"):
            return
        uid = pods.ref(work.run.pod).uid
        status = statuses.status_of(
            work.run, self._stamp, lambda container: self._bare.health(uid, container)
        )
        if status == work.written or (status["phase"] == "Pending" and not work.run.has_trouble):
            return
        self._api.patch_pod_status(work.run.pod, status)
        work.written = status
        if work.run.has_ended:
            work.release_at = self._monotonic() + self._bare.release_delay_seconds()

    def _finish(self, uid: str, work: Work, now: float) -> bool:
        """Let go of what has ended; whether the pod is done with."""
        if work.release_at is None or now < work.release_at:
            return False
        if not work.released:
            self._bare.release(uid)
            work.released = True
        if pods.meta_of(work.run.pod).get("deletionTimestamp"):
            self._api.delete_pod(work.run.pod)
            return True
        return False

    def _tell(self, work: Work, now: str) -> None:
        """Create the event of a refusal; without it the status still says all."""
        assert work.rejection is not None
        event = statuses.rejected_event(work.run.pod, work.rejection, now, node=self._node)
        try:
            self._api.create_event(event)
        except ApiError as err:
            log.info("no event for %s: %s", pods.ref(work.run.pod), err)

    def _end_due(self, work: Work, now: float) -> None:
        self._ended(work, work.run.end_due(now))

    def _ended(self, work: Work, parts: tuple[ContainerRun, ...]) -> None:
        uid = pods.ref(work.run.pod).uid
        for part in parts:
            self._bare.end_container(uid, part.name)

    def _stamp(self, at: float) -> str:
        """Return a moment of our clock as the API server's kind of text."""
        return datetime.fromtimestamp(self._epoch + at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
