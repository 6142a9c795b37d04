# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster's scheduler: the shell around `cycle` and `queue`.

It knows what a stock kube-scheduler knows, and so nothing of GPUs. Pods are decided one at a time;
a bind runs beside the next decisions, which count its pod as placed already.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import KubeError
from gpuslice.runtime.kube.events import EventRecorder
from gpuslice.runtime.kube.objects import Change
from gpuslice.runtime.kube.resources import NODES, PODS, Json
from gpuslice.runtime.kube.watch import WatchCache
from gpuslice.sim.scheduler import cycle, hints, views
from gpuslice.sim.scheduler.accounts import Accounts
from gpuslice.sim.scheduler.queue import Queue
from gpuslice.sim.scheduler.views import Node, Pod
from gpuslice.sim.scheduler.words_writer import WordsWriter

log = logging.getLogger(__name__)

NAME: Final = "default-scheduler"
BIND_SECONDS: Final = 10.0
MAX_BINDS: Final = 32
"""At once. The stock scheduler knows no limit; an arbiter lets few binds wait for long."""
_LONGEST_WAIT_SECONDS: Final = 60.0


class Scheduler:
    """Places the pods of one scheduler name.

    Args:
        client: reads pods and nodes, and binds.
        name: whose pods; `spec.schedulerName`.
        rng: breaks ties and spreads pauses; give one with a seed for a run that can be repeated.
        clock: seconds, only ever forwards.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        name: str = NAME,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._name = name
        self._rng = rng or random.Random()  # noqa: S311 - ties, not secrets
        self._nodes: dict[str, Node] = {}
        self._accounts = Accounts()
        self._queue = Queue(clock=clock, jitter=self._rng.random)
        # Guards nodes, accounts and queue: three threads bring changes, one decides.
        self._changed = threading.Condition(threading.RLock())
        self._stopping = threading.Event()
        self._node_cache = WatchCache(client, NODES)
        self._pod_cache = WatchCache(client, PODS)
        self._node_cache.listen(self._node_told)
        self._pod_cache.listen(self._pod_told)
        self._events = EventRecorder(client, component=name, instance=name)
        self._words = WordsWriter(client)
        self._binders = ThreadPoolExecutor(MAX_BINDS, thread_name_prefix="bind")
        self._decider = threading.Thread(target=self._decide_all, name="scheduler", daemon=True)

    def start(self) -> Scheduler:
        """Begin to place pods."""
        self._events.start()
        self._words.start()
        self._node_cache.start()
        self._pod_cache.start()
        self._decider.start()
        return self

    def wait_ready(self, timeout_seconds: float) -> bool:
        """Wait until it has read all pods and nodes; return whether it has."""
        deadline = time.monotonic() + timeout_seconds
        return self._node_cache.wait_ready(timeout_seconds) and self._pod_cache.wait_ready(
            max(0.0, deadline - time.monotonic())
        )

    def stop(self) -> None:
        """End within a second; binds under way may still land."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._node_cache.stop()
        self._pod_cache.stop()
        if self._decider.is_alive():
            self._decider.join(1.0)
        self._binders.shutdown(wait=False, cancel_futures=True)
        self._words.stop()
        self._events.stop()

    # --- what happens

    def _node_told(self, _change: Change, before: Json | None, after: Json | None) -> None:
        with self._changed:
            if after is None:
                assert before is not None
                self._nodes.pop(before["metadata"]["name"], None)
                return
            node = views.node_of(after)
            known = self._nodes.get(node.name)
            self._nodes[node.name] = node
            if node != known:
                self._happened(hints.node_changed(known, node))

    def _pod_told(self, _change: Change, before: Json | None, after: Json | None) -> None:
        content = after or before
        assert content is not None
        uid = content["metadata"]["uid"]
        node = views.assigned_to(content) if after else ""
        with self._changed:
            if node:
                self._queue.remove(uid)
                self._words.forget(uid)
                self._accounts.place(views.pod_of(content), node)
            elif after and views.is_waiting_for(content, self._name):
                # One that is placed but not queued was just bound: this tells of the time before.
                if uid in self._queue or not self._accounts.node_of(uid):
                    self._queue.put(views.pod_of(content))
                    self._changed.notify_all()
            else:
                self._queue.remove(uid)
                self._words.forget(uid)
                # A pod that is being bound is gone for good only once its bind has failed.
                if self._accounts.remove(uid):
                    self._happened(hints.room_freed)

    def _happened(self, hint: hints.Hint) -> None:
        self._queue.happened(hint)
        self._changed.notify_all()

    # --- decisions

    def _decide_all(self) -> None:
        self._wait_for_caches()
        while not self._stopping.is_set():
            with self._changed:
                pod = self._queue.take()
                if pod is None:
                    wake = self._queue.next_wake_seconds()
                    self._changed.wait(
                        _LONGEST_WAIT_SECONDS if wake is None else min(wake, _LONGEST_WAIT_SECONDS)
                    )
                    continue
                self._decide(pod)

    def _wait_for_caches(self) -> None:
        while not (self._node_cache.is_ready and self._pod_cache.is_ready):
            if self._stopping.wait(0.01):
                return

    def _decide(self, pod: Pod) -> None:
        decision = cycle.decide(pod, self._nodes.values(), self._accounts, self._rng.choice)
        if isinstance(decision, cycle.Unschedulable):
            self._queue.refused(pod, decision.refused_by)
            self._words.say(pod, "Unschedulable", decision.message)
            self._tell(pod, "FailedScheduling", decision.message, warning=True)
            return
        self._accounts.place(pod, decision.node)
        self._queue.chosen(pod)
        self._binders.submit(self._bind, pod, decision.node)

    # --- binds

    def _bind(self, pod: Pod, node: str) -> None:
        # Words that land after the bind would say of a placed pod that it waits.
        self._words.hush(pod.uid)
        try:
            self._client.bind(pod.content, node, timeout_seconds=BIND_SECONDS)
        except KubeError as err:
            self._unplace(pod, node, err.message)
        except Exception as err:
            log.exception("bind_confused", extra={"pod": pod.key})
            self._unplace(pod, node, str(err))
        else:
            with self._changed:
                self._queue.remove(pod.uid)
                self._words.forget(pod.uid)
            message = f"Successfully assigned {pod.key} to {node}"
            self._tell(pod, "Scheduled", message, warning=False)

    def _unplace(self, pod: Pod, node: str, why: str) -> None:
        message = f'running Bind plugin "DefaultBinder": {why}'
        with self._changed:
            # Where the watch shows it bound after all, the answer was lost and nothing is undone.
            pause = self._queue.failed(pod)
            if pause is None:
                return
            if self._accounts.node_of(pod.uid) == node and self._accounts.remove(pod.uid):
                self._happened(hints.room_freed)
            self._changed.notify_all()
        log.info("bind_failed", extra={"pod": pod.key, "node": node, "error": why, "pause": pause})
        self._words.say(pod, "SchedulerError", message)
        self._tell(pod, "FailedScheduling", message, warning=True)

    def _tell(self, pod: Pod, reason: str, message: str, *, warning: bool) -> None:
        self._events.record(PODS, pod.content, reason, message, warning=warning)
