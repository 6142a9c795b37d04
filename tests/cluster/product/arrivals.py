# SPDX-License-Identifier: Apache-2.0
"""A steady trickle of short pods with shares, and what becomes of each while things break."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.objects import Change
from gpuslice.runtime.kube.resources import GPU_NODES, PODS
from gpuslice.runtime.kube.watch import WatchCache
from tests.cluster.harness.client import ApiError, Json, UnreachableError, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.waiting import wait_until
from tests.cluster.product.sharing import sharing

ENDED = frozenset({"Succeeded", "Failed"})
MOST_AT_ONCE = 8
STARTING_SECONDS = 1.0
"""So long after a sudden death a pod may still be bound that nobody can save."""


@dataclass(slots=True, kw_only=True)
class Fate:
    """What became of one pod; times are `time.monotonic` of when the watch told."""

    pod: Json
    bound_at: float | None = None
    run_at: float | None = None
    failed_at: float | None = None

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def was_rejected(self) -> bool:
        """Whether kubelet refused it; other failures are its container's, and have no reason."""
        return self.failed_at is not None and bool(self.pod["status"].get("reason"))

    def was_starting(self, moment: float) -> bool:
        """Whether it was bound then, or within a second, and didn't run yet."""
        bound = self.bound_at is not None and self.bound_at <= moment + STARTING_SECONDS
        return bound and (self.run_at is None or self.run_at > moment)

    def __str__(self) -> str:
        status = self.pod["status"]
        states = [each["state"] for each in status.get("containerStatuses", ())]
        return f"{self.name}: {status.get('reason')}: {status.get('message')} {states}"


class Arrivals:
    """Creates pods on one node until it is closed, and watches them.

    Args:
        cluster: with the product on it.
        namespace: where the pods are created.
        node: the node they all go to; any where empty.
        fraction: their share.
        every_seconds: between two of them.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        node: str,
        *,
        fraction: str = "0.2",
        every_seconds: float = 0.4,
    ) -> None:
        self._cluster, self._namespace, self._node = cluster, namespace, node
        self._fraction, self._every_seconds = fraction, every_seconds
        self._client = KubeClient(config.load(cluster.kubeconfig), component="test")
        self._pods = WatchCache(self._client, PODS, namespace=namespace, labels="arrival=yes")
        self._pods.listen(self._note)
        of_node = f"metadata.name={node}" if node else ""
        self._ledger = WatchCache(self._client, GPU_NODES, fields=of_node)
        self._ledger.listen(self._note_serving)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._create, name="arrivals", daemon=True)
        self.fates: dict[str, Fate] = {}
        self.serving: list[tuple[float, bool]] = []
        """When the node's ledger began to say that it serves, or that it doesn't."""
        self.unmade: list[str] = []
        """Why pods could not be created."""

    def __enter__(self) -> Self:
        for cache in (self._pods, self._ledger):
            cache.start()
            assert cache.wait_ready(10), cache.problem
        self._thread.start()
        try:
            self.wait_more(2)
        except BaseException:
            self._stop.set()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Create no more; wait until all that were made have ended."""
        self._stop.set()
        self._thread.join(timeout=60)
        try:
            wait_until("all have ended", lambda: not self.unfinished(), seen=self._tell_unfinished)
        finally:
            self._pods.stop()
            self._ledger.stop()
            self._client.close()

    def wait_more(self, count: int, *, timeout_seconds: float = 60) -> None:
        """Wait until so many that were created after this moment have begun to run."""
        now = time.monotonic()
        names = set(self.fates)

        def enough() -> bool:
            return sum(f.run_at is not None and f.name not in names for f in self._all()) >= count

        wait_until(
            f"{count} more run on {self._node}",
            enough,
            timeout_seconds=timeout_seconds,
            seen=lambda: (time.monotonic() - now, self.unmade[-1:], self.unfinished()),
        )

    def unfinished(self) -> list[str]:
        return [f.name for f in self._all() if f.pod["status"].get("phase") not in ENDED]

    def _tell_unfinished(self) -> list[str]:
        return [
            str((fate.name, fate.pod["status"]))
            for fate in self._all()
            if fate.pod["status"].get("phase") not in ENDED
        ]

    def rejected(self) -> list[Fate]:
        """Those that kubelet refused."""
        return [fate for fate in self._all() if fate.was_rejected]

    def broken(self) -> list[Fate]:
        """Those whose container didn't end well."""
        failed = [fate for fate in self._all() if fate.failed_at is not None]
        return [fate for fate in failed if not fate.was_rejected]

    def forget_failed(self) -> None:
        """Delete those that have failed: they have been judged."""
        for fate in (*self.rejected(), *self.broken()):
            self._cluster.api.delete(pod_path(fate.name, self._namespace), grace_seconds=1)

    def _all(self) -> list[Fate]:
        return list(self.fates.values())

    def _create(self) -> None:
        for number in itertools.count():
            while len(self.unfinished()) >= MOST_AT_ONCE and not self._stop.wait(0.05):
                pass  # a slow machine must not drown in them
            if self._stop.is_set():
                return
            pod = sharing(
                f"arrival-{number}",
                fraction=self._fraction,
                namespace=self._namespace,
                node=self._node,
                labels={"arrival": "yes"},
                command=("sleep", "1"),
                spec={"restartPolicy": "Never", "automountServiceAccountToken": False},
            )
            try:
                self._cluster.api.create(pod_path(namespace=self._namespace), pod)
            except (ApiError, UnreachableError) as err:
                self.unmade.append(str(err))
            self._stop.wait(self._every_seconds)

    def _note(self, change: Change, _old: Json | None, new: Json | None) -> None:
        if change is Change.DELETED or new is None:
            return
        now = time.monotonic()
        fate = self.fates.setdefault(new["metadata"]["name"], Fate(pod=new))
        fate.pod = new
        phase = new["status"].get("phase")
        if new["spec"].get("nodeName") and fate.bound_at is None:
            fate.bound_at = now
        if phase in ("Running", "Succeeded") and fate.run_at is None:
            fate.run_at = now
        if phase == "Failed" and fate.failed_at is None:
            fate.failed_at = now

    def _note_serving(self, _change: Change, _old: Json | None, new: Json | None) -> None:
        serving = bool(new and new.get("status", {}).get("serving"))
        if not self.serving or self.serving[-1][1] != serving:
            self.serving.append((time.monotonic(), serving))


def unexcused(fates: list[Fate], deaths: list[float]) -> Iterator[str]:
    """Yield the rejected pods that no sudden death explains.

    All of them were bound while the ledger said that it serves: else the arbiter binds nothing.
    """
    for fate in fates:
        if not any(fate.was_starting(death) for death in deaths):
            yield str(fate)
