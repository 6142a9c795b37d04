# SPDX-License-Identifier: Apache-2.0
"""The recent changes of one resource, and those who watch it.

All methods are called with the store's lock held; `Watch` is then read without it.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.sim.apiserver.selectors import Matcher

QUEUE_LIMIT = 20_000
"""Events that a watch may lag behind before it is ended, as a real server ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One version of an object. `content` is never changed; `encoded` is its JSON."""

    content: Mapping[str, Any]
    encoded: bytes
    version: int
    namespace: str
    name: str

    def copy(self) -> dict[str, Any]:
        """Return the content as a dict of the caller's own."""
        copied: dict[str, Any] = orjson.loads(self.encoded)
        return copied


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step in a resource's history. Before is None at creation, `now` is always there."""

    before: Stored | None
    now: Stored
    is_removal: bool = False


def line(kind: str, encoded: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), encoded)


def _as_of(stored: Stored, version: int) -> bytes:
    content = stored.copy()
    content["metadata"]["resourceVersion"] = str(version)
    return orjson.dumps(content)


class Watch:
    """The events for one watcher, in order, as lines of JSON."""

    def __init__(self, *, namespace: str, matches: Matcher | None) -> None:
        self._namespace = namespace
        self._matches = matches
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ended = False

    def selects(self, stored: Stored) -> bool:
        if self._namespace and stored.namespace != self._namespace:
            return False
        return self._matches is None or self._matches(stored.content)

    def offer(self, change: Change) -> None:
        """Queue a change as this watcher sees it: leaving its selection is a DELETED."""
        selected_before = change.before is not None and self.selects(change.before)
        if change.is_removal:
            if selected_before:
                self.push(line("DELETED", change.now.encoded))
            return
        if self.selects(change.now):
            self.push(line("MODIFIED" if selected_before else "ADDED", change.now.encoded))
        elif selected_before and change.before is not None:
            self.push(line("DELETED", _as_of(change.before, change.now.version)))

    def push(self, text: bytes) -> None:
        if self._lines.qsize() >= QUEUE_LIMIT:
            self.end()
        if not self._ended:
            self._lines.put(text)

    def end(self) -> None:
        """Let the reader see the end after what is queued."""
        self._ended = True
        self._lines.put(None)

    @property
    def has_ended(self) -> bool:
        return self._ended

    def take(self, timeout_seconds: float) -> list[bytes] | None:
        """Wait for events and return all that are there.

        Returns:
            The lines, an empty list after the timeout, or None when the watch has ended.
        """
        lines: list[bytes] = []
        deadline = time.monotonic() + timeout_seconds
        try:
            one = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            while one is not None:
                lines.append(one)
                one = self._lines.get_nowait()
        except queue.Empty:
            return lines
        if lines:
            self._lines.put(None)
            return lines
        return None


class History:
    """A bounded window of changes; what is older is answered with 410 Gone."""

    def __init__(self, limit: int) -> None:
        self._changes: deque[Change] = deque(maxlen=limit)
        self._watches: list[Watch] = []
        self._forgotten = 0

    def record(self, change: Change) -> None:
        if len(self._changes) == self._changes.maxlen:
            self._forgotten = self._changes[0].now.version
        self._changes.append(change)
        for watch in self._watches:
            watch.offer(change)

    def forget(self, version: int) -> None:
        """Drop everything up to a version, as compaction does."""
        while self._changes and self._changes[0].now.version <= version:
            self._changes.popleft()
        self._forgotten = max(self._forgotten, version)

    def reaches(self, version: int) -> bool:
        """Say whether all changes after this version are still known."""
        return version >= self._forgotten

    def join(self, watch: Watch, since: int) -> None:
        for change in self._changes:
            if change.now.version > since:
                watch.offer(change)
        self._watches.append(watch)

    def leave(self, watch: Watch) -> None:
        if watch in self._watches:
            self._watches.remove(watch)

    def end_all(self) -> None:
        for watch in self._watches:
            watch.end()
        self._watches.clear()
