# SPDX-License-Identifier: Apache-2.0
"""What the nodes have and show: their ledgers, and the fits that they publish.

Both are watched. A ledger is written by compare-and-swap against what was read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from gpuslice.contract import gpunode, names
from gpuslice.contract.ledger import Ledger
from gpuslice.runtime.kube import resources
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import ConflictError, KubeError, NotFoundError
from gpuslice.runtime.kube.objects import identity
from gpuslice.runtime.kube.resources import Json
from gpuslice.runtime.kube.watch import WatchCache
from webhook.arbiter import Snapshot, SwapLostError, UnreachableError

log = logging.getLogger(__name__)

CALL_SECONDS: Final = 1.0
"""For one read or write of a ledger: a bind has less than three."""
_LEDGER: Final = "ledger"
_MODE: Final = "mode"
_FITS: Final = "fits"
_RISES: Final = "rises"


def watch_gpu_nodes(client: KubeClient) -> WatchCache:
    """Return a cache of the ledgers, not yet started."""
    return WatchCache(client, resources.GPU_NODES, transform=_with_ledger)


def _with_ledger(gpu_node: Json) -> Json:
    """Keep the ledger instead of the JSON: it is what is decided on, and smaller."""
    kept = identity(gpu_node)
    kept[_MODE] = (gpu_node.get("spec") or {}).get("mode") or ""
    try:
        kept[_LEDGER] = gpunode.ledger_of(gpu_node)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # Its node can't be decided about, the others can.
        log.error(  # noqa: TRY400  the message says all; a trace of the decoder says nothing
            "ledger_unreadable", extra={"node": kept["metadata"].get("name"), "error": str(error)}
        )
        kept[_LEDGER] = None
    return kept


def ledgers_in(cache: WatchCache) -> Iterator[Ledger]:
    """Yield all readable ledgers of a cache."""
    for item in cache.snapshot().values():
        if item[_LEDGER] is not None:
            yield item[_LEDGER]


def ledger_in(item: Json | None) -> Ledger | None:
    """Return the ledger in an object of the cache, as its listeners get them."""
    ledger = None if item is None else item[_LEDGER]
    assert ledger is None or isinstance(ledger, Ledger)
    return ledger


def mode_in(item: Json | None) -> str:
    """Return how the node of an object of the cache shares its GPUs."""
    return "" if item is None else str(item[_MODE])


def modes_in(cache: WatchCache) -> frozenset[str]:
    """Return the modes of all nodes of a cache."""
    return frozenset(map(mode_in, cache.snapshot().values()))


class GpuNodes:
    """The arbiter's `Ledgers`."""

    def __init__(self, client: KubeClient, cache: WatchCache) -> None:
        """Keep the client that writes, and the cache that `watch_gpu_nodes` made."""
        self._client = client
        self._cache = cache

    def snapshot(self, node: names.NodeName) -> Snapshot | None:
        """Return the newest known ledger of a node."""
        item = self._cache.get(node)
        if item is None or item[_LEDGER] is None:
            return None
        return Snapshot(ledger=item[_LEDGER], version=resources.version_of(item))

    def all(self) -> Iterator[Ledger]:
        """Yield all ledgers; nothing is read before the first is asked for."""
        yield from ledgers_in(self._cache)

    def refresh(self, node: names.NodeName) -> None:
        """Read a node's ledger anew."""
        try:
            found = self._client.get(resources.GPU_NODES, node, timeout_seconds=CALL_SECONDS)
        except NotFoundError:
            return  # the watch will say so too
        except KubeError as error:
            raise UnreachableError(error.message) from error
        self._cache.put_back(found)

    def swap(self, snapshot: Snapshot, ledger: Ledger) -> int:
        """Write a ledger in the place of the one that was read, and return its version."""
        thing = {
            "apiVersion": names.API_VERSION,
            "kind": names.GPU_NODE_KIND,
            "metadata": {"name": ledger.node, "resourceVersion": str(snapshot.version)},
            "status": gpunode.status_of(ledger),
        }
        try:
            stored = self._client.replace(
                resources.GPU_NODES, thing, status=True, timeout_seconds=CALL_SECONDS
            )
        except (ConflictError, NotFoundError) as error:
            raise SwapLostError(error.message) from error
        except KubeError as error:
            raise UnreachableError(error.message) from error
        self._cache.put_back(stored)
        return resources.version_of(stored)

    def wait_for_change(self, node: names.NodeName, version: int, timeout_seconds: float) -> bool:
        """Return whether a node's ledger became another than `version` in time."""

        def has_changed() -> bool:
            item = self._cache.get(node)
            return item is None or resources.version_of(item) != version

        return self._cache.wait_for(has_changed, timeout_seconds)


class NodeViews:
    """The arbiter's `Nodes`: each Node's ledger version and fits, with the time each last rose."""

    def __init__(
        self,
        client: KubeClient,
        *,
        hold_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare the watch; `cache.start` begins it.

        Args:
            client: reads the Nodes.
            hold_seconds: how long after a rise kubelet may not have seen it yet.
            clock: monotonic seconds.
            sleep: passes the rest of a hold.
        """
        self._hold_seconds = hold_seconds
        self._clock = clock
        self._sleep = sleep
        self._last: dict[str, Json] = {}
        self.cache = WatchCache(client, resources.NODES, transform=self._view, clock=clock)

    def _view(self, node: Json) -> Json:
        """Keep the version and the fits; called for each event in order, by one thread."""
        kept = identity(node)
        name = kept["metadata"]["name"]
        annotations = (node.get("metadata") or {}).get("annotations") or {}
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        version = str(annotations.get(names.LEDGER_ANNOTATION) or "")
        fits = {
            resource: int(value)
            for resource, value in allocatable.items()
            if resource.startswith(names.FIT_PREFIX) and str(value).isdecimal()
        }
        before = self._last.get(name) or {_FITS: {}, _RISES: {}}
        now = self._clock()
        rises = {
            resource: now if value > before[_FITS].get(resource, 0) else before[_RISES][resource]
            for resource, value in fits.items()
            if value > 0 or resource in before[_RISES]
        }
        view: dict[str, Any] = {
            **kept,
            _LEDGER: int(version) if version.isascii() and version.isdecimal() else 0,
            _FITS: fits,
            _RISES: rises,
        }
        if fits:
            self._last[name] = view
        else:
            self._last.pop(name, None)
        return view

    def wait_until_shown(
        self, node: names.NodeName, version: int, resource: str, timeout_seconds: float
    ) -> bool:
        """Return whether in time a node showed a ledger of that version or a later one.

        And that a while after the last rise of `resource`: kubelet checks the pod against its own
        copy of the Node, which comes later than ours, and fails it for good.
        """
        until = self._clock() + timeout_seconds

        def shown() -> Json | None:
            view = self.cache.get(node)
            if view is None or view[_LEDGER] < version or view[_FITS].get(resource, 0) < 1:
                return None
            return view

        while True:
            view = self.cache.wait_for(shown, max(0.0, until - self._clock()))
            if view is None:
                return False
            pause = view[_RISES].get(resource, 0.0) + self._hold_seconds - self._clock()
            if pause <= 0:
                return True
            if self._clock() + pause > until:
                return False
            self._sleep(pause)
