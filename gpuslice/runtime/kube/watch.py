# SPDX-License-Identifier: Apache-2.0
"""A cache of one kind of object, kept true by list and watch, that knows how stale it is.

Two threads: one reads the API server, one calls the listeners, so that a slow listener never makes
the cache old, and a write that is put back never waits for one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import orjson

from gpuslice.runtime.kube.backoff import Backoff, jitter_of_its_own
from gpuslice.runtime.kube.client import KubeClient, Selection
from gpuslice.runtime.kube.errors import GoneError, KubeError, UnavailableError, error_of
from gpuslice.runtime.kube.objects import Change, Indexer, Kept, Notice, Objects, Transform
from gpuslice.runtime.kube.resources import Json, Resource, version_of
from gpuslice.runtime.kube.transport import Stream

log = logging.getLogger(__name__)

Listener = Callable[[Change, Json | None, Json | None], object]
"""Called with the change, the object before and the object after it."""
T = TypeVar("T")

LIFETIME_SECONDS: Final = (240, 480)
"""The server ends a watch after a time between these, so that the clients of many nodes spread."""
SILENCE_SECONDS: Final = 150.0
"""A real server sends a bookmark about each minute: after two and a half the connection is dead."""
QUICK_END_SECONDS: Final = 1.0
"""A watch that ends sooner than this is no normal end, and is begun again after a pause."""
STOP_SECONDS: Final = 1.0


class WatchCache:
    """The objects of one kind, as the API server last told.

    Args:
        client: reads them.
        resource: their kind.
        namespace: empty for all.
        labels: a selector.
        fields: a selector such as ``spec.nodeName=node-a``.
        transform: what to keep of each object, for less memory; see `objects.identity`.
        indexes: per index, under which values an object is found.
        clock: seconds, only ever forwards.
        jitter: a number in [0, 1).
        silence_seconds: after which a silent connection counts as dead.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        transform: Transform | None = None,
        indexes: Mapping[str, Indexer] | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = jitter_of_its_own,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._client = client
        self._resource = resource
        self._selection = Selection(namespace=namespace, labels=labels, fields=fields)
        self._clock = clock
        self._jitter = jitter
        self._silence_seconds = silence_seconds
        self._objects = Objects(transform, indexes)
        self._changed = threading.Condition(threading.RLock())
        self._ready = False
        self._connected = False
        self._sign_at: float | None = None
        self._problem = ""
        self._listeners: list[Listener] = []
        self._notices: queue.SimpleQueue[Notice | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._stream: Stream | None = None
        name = f"watch-{resource.plural}"
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._teller = threading.Thread(target=self._tell, name=f"{name}-tell", daemon=True)

    # --- life

    def listen(self, listener: Listener) -> None:
        """Call a function for each change, in order, always in the same thread.

        A listener added later is not told of what is there already. One that raises is logged,
        and called again for the next change.
        """
        self._listeners.append(listener)

    def start(self) -> WatchCache:
        """Begin to read."""
        self._reader.start()
        self._teller.start()
        return self

    def stop(self) -> None:
        """End both threads and wake all who wait; takes less than a second."""
        self._stopping.set()
        self._notices.put(None)
        with self._changed:
            stream = self._stream
            self._changed.notify_all()
        if stream is not None:
            stream.cut()
        for thread in (self._reader, self._teller):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(STOP_SECONDS / 2)

    # --- what it knows

    def get(self, key: str) -> Json | None:
        """Return the object of a key (``namespace/name``, or ``name``); never change it."""
        with self._changed:
            return self._objects.get(key)

    def snapshot(self) -> dict[str, Json]:
        """Return all objects by key, as they are at this moment together."""
        with self._changed:
            return self._objects.all()

    def indexed(self, index: str, value: str) -> tuple[Json, ...]:
        """Return the objects found under a value of an index."""
        with self._changed:
            return self._objects.indexed(index, value)

    def __len__(self) -> int:
        with self._changed:
            return len(self._objects)

    @property
    def is_ready(self) -> bool:
        """Whether it has read everything once."""
        return self._ready

    @property
    def is_connected(self) -> bool:
        """Whether a watch is open now."""
        return self._connected

    @property
    def problem(self) -> str:
        """Why it can't read at the moment; empty while it can."""
        return self._problem

    def staleness_seconds(self) -> float:
        """Return how long ago the API server last gave a sign; infinite before the first.

        While nothing changes a server gives one about each minute only: what `is_connected` says
        is younger than that, since the kernel notices a dead peer in half a minute.
        """
        at = self._sign_at
        return float("inf") if at is None else max(0.0, self._clock() - at)

    def wait_ready(self, timeout_seconds: float) -> bool:
        """Wait until everything has been read once; return whether it has."""
        return self.wait_for(lambda: self._ready, timeout_seconds)

    def wait_for(self, predicate: Callable[[], T], timeout_seconds: float) -> T:
        """Wait until a predicate holds; return its last value.

        Args:
            predicate: called at first and after every change, with the cache locked: it may read
                this cache, and must be quick.
            timeout_seconds: how long to wait at most. `stop` ends the wait too.
        """
        deadline = self._clock() + timeout_seconds
        with self._changed:
            while True:
                value = predicate()
                left = deadline - self._clock()
                if value or left <= 0 or self._stopping.is_set():
                    return value
                self._changed.wait(left)

    def put_back(self, thing: Json) -> None:
        """Take the object that one of our own writes returned, so that the cache isn't older.

        Only for objects that match the selectors. One that the watch has passed is ignored.
        """
        with self._changed:
            self._publish(self._objects.put_back(thing))

    # --- reading

    def _publish(self, notices: Iterable[Notice]) -> None:
        """Hand changes on; the caller holds the lock, so that they keep their order."""
        has_changed = False
        for notice in notices:
            has_changed = True
            self._notices.put(notice)
        if has_changed:
            self._changed.notify_all()

    def _read(self) -> None:
        backoff = Backoff(jitter=self._jitter)
        version = ""
        while not self._stopping.is_set():
            began = self._clock()
            try:
                if not version:
                    version = self._list()
                version = self._follow(version)
                if self._clock() - began >= QUICK_END_SECONDS:
                    backoff.reset()
                    continue
            except GoneError as err:
                log.info("watch_too_old", extra=self._about(err))
                version = ""
            except KubeError as err:
                if self._stopping.is_set():
                    return
                version = self._after_failure(err, version)
            except Exception as err:
                # A server that answers nonsense must not end the thread that all else relies on.
                log.exception("watch_confused", extra=self._about(err))
                self._complain(str(err))
                version = ""
            if self._clock() - began >= QUICK_END_SECONDS:
                backoff.reset()
            self._stopping.wait(backoff.pause_seconds())

    def _after_failure(self, err: KubeError, version: str) -> str:
        if self._problem != err.message:
            log.warning("watch_interrupted", extra=self._about(err))
        self._complain(err.message)
        # What is refused (a bad version too) may work from the start.
        return version if isinstance(err, UnavailableError) else ""

    def _complain(self, problem: str) -> None:
        with self._changed:
            self._problem = problem
            self._changed.notify_all()

    def _about(self, err: Exception) -> dict[str, Any]:
        return {"resource": self._resource.plural, "error": str(err)}

    def _list(self) -> str:
        """Read everything; return the version to watch from."""
        listed: list[Kept] = []
        version = ""
        for page, of_list in self._client.pages(self._resource, self._selection):
            listed += map(self._objects.kept, page)
            version = of_list
            if self._stopping.is_set():
                raise UnavailableError("stopping")
        with self._changed:
            self._publish(self._objects.relist(listed, int(version or 0)))
            self._ready = True
            self._sign()
            self._changed.notify_all()
        return version

    def _follow(self, version: str) -> str:
        """Take events until the server ends the watch; return the version to go on from."""
        least, most = LIFETIME_SECONDS
        stream = self._client.watch(
            self._resource,
            self._selection,
            since=version,
            lifetime_seconds=int(least + (most - least) * self._jitter()),
            silence_seconds=self._silence_seconds,
        )
        with self._changed:
            self._stream = stream
            self._connected = True
            self._problem = ""
            self._sign()
            self._changed.notify_all()
        if self._stopping.is_set():
            stream.cut()
        try:
            for line in stream.lines():
                self._sign()
                if line:
                    version = self._take(orjson.loads(line)) or version
        except UnavailableError:
            # Go on from the last event, not from where this watch began.
            if not self._stopping.is_set():
                log.info("watch_broke", extra={"resource": self._resource.plural})
        finally:
            with self._changed:
                self._connected = False
                self._stream = None
                self._changed.notify_all()
            stream.close()
        return version

    def _take(self, event: Json) -> str:
        """Take one event; return the version to go on from."""
        thing = event["object"]
        if event["type"] == "ERROR":
            raise error_of(thing, 0)
        with self._changed:
            if event["type"] == "BOOKMARK":
                self._objects.seen = max(self._objects.seen, version_of(thing))
            else:
                self._publish(self._objects.told(Change(event["type"]), thing))
        return str(thing["metadata"]["resourceVersion"])

    def _sign(self) -> None:
        self._sign_at = self._clock()

    # --- telling

    def _tell(self) -> None:
        while (notice := self._notices.get()) is not None:
            for listener in tuple(self._listeners):
                try:
                    listener(*notice)
                except Exception:
                    log.exception("listener_failed", extra={"resource": self._resource.plural})
