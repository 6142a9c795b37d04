# SPDX-License-Identifier: Apache-2.0
"""The embedded kubelet: one node against an API server.

pods of the node (watch) ──> admission, one pod at a time ──> pod workers ──> pod statuses
its Node (watch, lagging) ────────┘   │
plugins (gRPC) <──────────────────────┴── device half ──> node status
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from gpuslice.contract import pods
from gpuslice.contract.pods import Json
from gpuslice.sim.kubelet import node
from gpuslice.sim.kubelet.api import Api, ApiError, Change, Watch
from gpuslice.sim.kubelet.bare import BareKubelet, Holdings
from gpuslice.sim.kubelet.devices import PanicError
from gpuslice.sim.kubelet.quirks import Quirks
from gpuslice.sim.kubelet.timings import Timings
from gpuslice.sim.kubelet.workers import PodWorkers

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
FIRST_STATUS_SECONDS = 0.5
"""How long pods wait at most for kubelet's own copy to show the first status that it wrote."""


class Kubelet:
    """One node's kubelet.

    Args:
        node_name: its Node's name.
        root: stands for /var/lib/kubelet; plugins register in `root`/device-plugins.
        api: the API server.
        labels: of the Node, beside the usual ones.
        capacity: the machine's own resources.
        rng: every choice that the real kubelet leaves to chance.
        quirks: which version of kubelet it is.
        timings: how long what takes.
        monotonic: seconds, only ever forwards.
    """

    def __init__(
        self,
        *,
        node_name: str,
        root: Path,
        api: Api,
        labels: Mapping[str, str] | None = None,
        capacity: Mapping[str, str] = node.DEFAULT_CAPACITY,
        rng: Random | None = None,
        quirks: Quirks | None = None,
        timings: Timings | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node_name = node_name
        self.panic: PanicError | None = None
        """What the real kubelet would have crashed of; the node does nothing from then on."""
        self._api = api
        self._capacity = dict(capacity)
        self._new_node = node.new_node(node_name, labels or {}, capacity)
        self._rng = rng or Random()  # noqa: S311 - no secret
        self._timings = timings or Timings()
        self._monotonic = monotonic
        self._status_due = threading.Event()
        self._first_status = threading.Event()
        """Set when this start's first status is written."""
        self._stop = threading.Event()
        self.bare = BareKubelet(
            root, rng=self._rng, quirks=quirks, on_change=self._devices_changed, monotonic=monotonic
        )
        self._workers = PodWorkers(
            bare=self.bare, api=api, node=node_name, timings=self._timings, monotonic=monotonic
        )
        self._changes: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        self._known: dict[str, Json] = {}
        """The pods of this node by UID, as the API server last told."""
        self._own_node: deque[tuple[float, Json]] = deque()
        """Our Node, each version with the time from which it counts; the first one counts."""
        self._watches: tuple[Watch, ...] = ()
        self._threads: tuple[threading.Thread, ...] = ()

    def start(self) -> None:
        """Start, for the first time or again."""
        self._stop = threading.Event()
        self._changes = queue.SimpleQueue()
        self._known, self._own_node = {}, deque()
        self._first_status = threading.Event()
        self._workers.end_overdue()
        reset = self.bare.quirks.runtime_starts_late and not self.bare.has_checkpoint()
        self.bare.start(ready=False)
        self._workers.start()
        node_watch, pod_watch = (
            self._api.watch_node(self.node_name),
            self._api.watch_pods(self.node_name),
        )
        self._watches = (node_watch, pod_watch)
        jobs: Mapping[str, Callable[[], None]] = {
            "status": lambda: self._keep_status(reset=reset),
            "own node": lambda: self._follow_node(node_watch),
            "pods": lambda: self._follow_pods(pod_watch),
            "sync": self._sync_loop,
        }
        self._threads = tuple(
            threading.Thread(target=job, name=f"{name} {self.node_name}", daemon=True)
            for name, job in jobs.items()
        )
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End as if killed: containers run on, nobody looks after them."""
        self._stop.set()
        self._status_due.set()
        self._first_status.set()
        self._changes.put(None)
        for watch in self._watches:
            watch.cut()
        self.bare.stop()
        self._workers.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=1)

    def restart(self) -> None:
        """Restart kubelet; containers run on."""
        self.stop()
        self.start()

    def power_off(self) -> None:
        """Switch the node off: nothing runs any more, the checkpoint is still there."""
        self.stop()
        self.bare.power_off()
        self._workers.power_off()

    def reboot(self) -> None:
        """Switch the node off and on again."""
        self.power_off()
        self.start()

    def allocations(self) -> Holdings:
        """Return pod UID -> container -> resource -> device ids, of the active pods."""
        return self.bare.allocations()

    def container_env(self, namespace: str, pod: str, container: str) -> dict[str, str]:
        """Return a container's environment, as ``kubectl exec -- env`` would print it.

        Raises:
            KeyError: where this node has no such active pod or container.
        """
        for each in self.bare.active_pods():
            about = pods.ref(each)
            if (about.namespace, about.name) == (namespace, pod):
                return self.bare.container_env(about.uid, container)
        raise KeyError(f"{namespace}/{pod}")

    def finish(self, uid: str) -> None:
        """Let the programs of a pod come to their end now."""
        self._workers.finish(uid)

    def processes(self) -> tuple[tuple[str, str, str, str], ...]:
        """Return (pod UID, namespace, pod, container) of every process that is alive.

        That of a pod deleted by force lives on for a while, though nothing lists it.
        """
        return self._workers.processes()

    def _devices_changed(self) -> None:
        self._workers.devices_changed()
        if self._timings.push_on_change:
            self._status_due.set()

    # The Node.

    def _keep_status(self, *, reset: bool) -> None:
        """Register the Node, then keep its status up to date."""
        stop = self._stop
        registered = False
        while not stop.is_set():
            try:
                if not registered:
                    self._register(reset=reset)
                    registered = True
                self._push_status()
                self._first_status.set()
                pause = self._timings.status_interval_seconds
            except ApiError as err:
                log.info("node %s: %s", self.node_name, err)
                pause = RETRY_SECONDS
            if self._status_due.wait(pause):
                self._status_due.clear()

    def _register(self, *, reset: bool) -> None:
        """Create the Node. One that exists keeps its fields.

        A kubelet that takes it for a new one sets all extended resources of it to 0.
        """
        try:
            self._api.create_node(self._new_node)
        except ApiError as err:
            if err.code != 409:
                raise
            patch = node.reset_patch(self._api.get_node(self.node_name)) if reset else {}
            if patch:
                self._api.patch_node_status(self.node_name, patch)

    def _push_status(self) -> None:
        counts, given_up = self.bare.counts()
        patch = node.status_patch(
            self._api.get_node(self.node_name),
            own=self._capacity,
            counts=counts,
            given_up=given_up,
        )
        if patch:
            self._api.patch_node_status(self.node_name, patch)

    def _follow_node(self, watch: Watch) -> None:
        for change in watch.changes():
            if change.kind != "DELETED":
                counts_from = self._monotonic() + self._timings.node_lag_seconds
                self._own_node.extend((counts_from, each) for each in change.objects)

    def _node_copy(self) -> Json:
        """Return our own copy of the Node: what the watch told, and `node_lag_seconds` late."""
        now = self._monotonic()
        versions = self._own_node
        while len(versions) > 1 and versions[1][0] <= now:
            versions.popleft()
        return versions[0][1] if versions else self._new_node

    def _fresh_node(self) -> Json:
        try:
            return self._api.get_node(self.node_name)
        except ApiError:
            return self._node_copy()

    # The pods.

    def _follow_pods(self, watch: Watch) -> None:
        changes = self._changes
        for change in watch.changes():
            changes.put(change)

    def _sync_loop(self) -> None:
        """Take the pods' changes, a short while's together."""
        stop, changes = self._stop, self._changes
        ready = False
        self._await_own_node()
        while True:
            change = changes.get()
            if not ready or self._timings.batch_seconds == 0:
                batch = [change]
            else:
                stop.wait(self._timings.batch_seconds)
                batch = [change, *_drain(changes)]
            if stop.is_set() or None in batch:
                return
            try:
                self._sync([each for each in batch if each is not None])
            except PanicError as err:
                log.exception("kubelet of %s would have crashed", self.node_name)
                self.panic = err
                return
            if not ready:
                ready = True
                self.bare.sources_are_ready()

    def _await_own_node(self) -> None:
        """Wait, before the first pod, until our copy of the Node shows what we wrote into it.

        The real one waits for its copy too, and writes before it has read any pod.
        """
        self._first_status.wait()
        deadline = self._monotonic() + FIRST_STATUS_SECONDS
        while not self._stop.is_set() and self._monotonic() < deadline:
            shown = (self._node_copy().get("status") or {}).get("allocatable") or {}
            counts, _ = self.bare.counts()
            if self._own_node and all(
                shown.get(resource) == str(healthy) for resource, (_, healthy) in counts.items()
            ):
                return
            self._stop.wait(0.005)

    def _sync(self, batch: list[Change]) -> None:
        """Work off some changes: removals and updates first, then the new pods, older ones first.

        Those of the same second come in any order.
        """
        arrived: dict[str, Json] = {}
        for change in batch:
            listed = {pods.ref(each).uid: each for each in change.objects}
            if change.kind == "LIST":
                for uid in (self._known.keys() | self._workers.uids()) - listed.keys():
                    self._remove(uid)
                    arrived.pop(uid, None)
            for uid, pod in listed.items():
                if change.kind == "DELETED":
                    self._remove(uid)
                    arrived.pop(uid, None)
                elif uid in self._known:
                    self._known[uid] = pod
                    self._workers.changed(pod)
                else:
                    arrived[uid] = pod
        newcomers = list(arrived.items())
        self._rng.shuffle(newcomers)
        newcomers.sort(key=lambda item: str(pods.meta_of(item[1]).get("creationTimestamp")))
        for uid, pod in newcomers:
            self._known[uid] = pod
            self._add(pod)

    def _remove(self, uid: str) -> None:
        self._known.pop(uid, None)
        self._workers.vanished(uid)

    def _add(self, pod: Json) -> None:
        if pods.has_ended(pod) or (pods.is_leaving(pod) and not self._runs(pod)):
            self._workers.ended_before(pod)
            return
        rejection = self.bare.admit(
            pod, node=self._node_copy, fresh_node=self._fresh_node, run=False
        )
        if self._stop.is_set():
            return
        if rejection is None:
            self._workers.admitted(pod)
        else:
            self._workers.rejected(pod, rejection)

    def _runs(self, pod: Json) -> bool:
        """Whether processes of a pod are alive, from before this kubelet started."""
        uid = pods.ref(pod).uid
        return any(uid == running for running, *_ in self._workers.processes())


def _drain(changes: queue.SimpleQueue[Change | None]) -> list[Change | None]:
    drained = []
    while not changes.empty():
        drained.append(changes.get())
    return drained
