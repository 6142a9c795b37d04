# SPDX-License-Identifier: Apache-2.0
"""The list of shares in use: one `GpuShare` for each, made and removed by every replica alike.

Nodes publish a fit for each of them. There is no leader: what is there already is fine, and what
one replica removes while another needs it is made again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gpuslice.contract import gpunode
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import Share, ShareError, parse_share
from gpuslice.runtime.kube import resources
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import ConflictError, KubeError, NotFoundError
from gpuslice.runtime.kube.objects import Change
from gpuslice.runtime.kube.resources import Json
from gpuslice.runtime.kube.watch import WatchCache
from webhook import podcache
from webhook.sharingpods import SharingPod

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0
"""Between two looks for what is idle or went missing."""
RETRY_SECONDS: Final = 1.0
CALL_SECONDS: Final = 5.0


class Uses:
    """How many pods use each share, and with which k: counted as pods come and go."""

    def __init__(self) -> None:
        """Begin with no pod."""
        self._lock = threading.Lock()
        self._counts: dict[Share, Counter[int]] = {}

    def change(self, before: SharingPod | None, after: SharingPod | None) -> bool:
        """Take one change of a pod; return whether the uses are others now."""
        old, new = _use(before), _use(after)
        if old == new:
            return False
        with self._lock:
            if old is not None:
                share, slices = old
                self._counts[share][slices] -= 1
                self._counts[share] = +self._counts[share]
                if not self._counts[share]:
                    del self._counts[share]
            if new is not None:
                share, slices = new
                self._counts.setdefault(share, Counter())[slices] += 1
        return True

    def largest(self) -> dict[Share, int]:
        """Return the shares in use, each with the largest k among its pods."""
        with self._lock:
            return {share: max(counts) for share, counts in self._counts.items()}


def _use(pod: SharingPod | None) -> tuple[Share, int] | None:
    """Return whose fit a pod requests and its k, None for one that has ended."""
    if pod is None or pod.ask is None or pod.has_ended:
        return None
    return pod.ask.fit, pod.ask.demand.slices


def shares_in(cache: WatchCache) -> frozenset[Share]:
    """Return the shares that a cache of `GpuShare` objects lists."""
    found = set()
    for name in cache.snapshot():
        try:
            found.add(parse_share(name))
        except ShareError:
            continue  # not one of ours: the CRD's schema keeps most out
    return frozenset(found)


class ShareKeeper:
    """Keeps the list of shares in use; one thread."""

    def __init__(
        self,
        *,
        client: KubeClient,
        pods: WatchCache,
        listed: WatchCache,
        standing: Callable[[], Mapping[Share, int]],
        idle_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listen to both caches, which must not be started yet.

        Args:
            client: writes `GpuShare` objects.
            pods: of `podcache.watch_pods`.
            listed: the `GpuShare` objects.
            standing: returns the shares that are always listed, with their k of this moment.
            idle_seconds: how long a share may be unused.
            clock: monotonic seconds.
        """
        self._client = client
        self._listed = listed
        self._standing = standing
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._pods = pods
        self._uses = Uses()
        self._unused_since: dict[Share, float] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shares", daemon=True)
        pods.listen(self._pod_changed)
        listed.listen(self._list_changed)

    def start(self) -> None:
        """Begin to keep the list."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def nudge(self) -> None:
        """Look again soon: the standing shares' k may have changed."""
        self._wake.set()

    def _pod_changed(self, _change: Change, before: Json | None, after: Json | None) -> None:
        if self._uses.change(podcache.sharing_in(before), podcache.sharing_in(after)):
            self._wake.set()

    def _list_changed(self, change: Change, _before: Json | None, _after: Json | None) -> None:
        if change is Change.DELETED:
            self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            pause = LOOK_SECONDS
            if self._pods.is_ready and self._listed.is_ready:
                try:
                    self.keep()
                except KubeError as error:
                    log.warning("shares_not_kept", extra={"error": error.message})
                    pause = RETRY_SECONDS
            else:
                pause = RETRY_SECONDS / 10
            self._wake.wait(pause)

    def keep(self) -> None:
        """Make what is missing, raise what is too small, remove what has been idle for long."""
        wanted = dict(self._standing())
        for share, slices in self._uses.largest().items():
            wanted[share] = max(slices, wanted.get(share, 0))
        listed = self._listed.snapshot()
        for share, slices in sorted(wanted.items(), key=lambda each: str(each[0])):
            self._unused_since.pop(share, None)
            self._ensure(Demand(share=share, slices=slices), listed.get(str(share)))
        self._remove_idle(listed, wanted)

    def _ensure(self, demand: Demand, present: Json | None) -> None:
        try:
            if present is None:
                made = self._client.create(
                    resources.GPU_SHARES, gpunode.gpu_share(demand), timeout_seconds=CALL_SECONDS
                )
            elif _slices(present) < demand.slices:
                raised: dict[str, Any] = gpunode.gpu_share(demand)
                raised["metadata"] = {
                    **raised["metadata"],
                    "resourceVersion": present["metadata"]["resourceVersion"],
                }
                made = self._client.replace(
                    resources.GPU_SHARES, raised, timeout_seconds=CALL_SECONDS
                )
            else:
                return
        except (ConflictError, NotFoundError):
            return  # another replica was there first: the watch will tell
        self._listed.put_back(made)
        log.info("share_listed", extra={"share": str(demand.share), "slices": demand.slices})

    def _remove_idle(self, listed: Mapping[str, Json], wanted: Iterable[Share]) -> None:
        now, kept = self._clock(), set(wanted)
        for name, item in listed.items():
            try:
                share = parse_share(name)
            except ShareError:
                continue
            if share in kept:
                continue
            since = self._unused_since.setdefault(share, now)
            if now - since < self._idle_seconds:
                continue
            try:
                self._client.delete(
                    resources.GPU_SHARES,
                    name,
                    resource_version=item["metadata"]["resourceVersion"],
                    timeout_seconds=CALL_SECONDS,
                )
                log.info("share_dropped", extra={"share": name})
            except (ConflictError, NotFoundError):
                continue
            finally:
                self._unused_since.pop(share, None)


def _slices(gpu_share: Json) -> int:
    slices = (gpu_share.get("spec") or {}).get("slices")
    return slices if isinstance(slices, int) else 0
