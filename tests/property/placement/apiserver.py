# SPDX-License-Identifier: Apache-2.0
"""A model of the API server: objects with versions, compare-and-swap, and watches that lag.

Every write makes a version and an event. A watcher hears the events in order, but when it likes:
all of them, one, or none. A watch that breaks is begun anew with a list, and what happened in
between is never told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

PODS, NODES, GPU_NODES = "pods", "nodes", "gpunodes"


class ConflictError(Exception):
    """The object has another version than the writer thinks, or isn't there any more."""


class NoAnswerError(Exception):
    """The writer hears nothing; whether the write took place it doesn't know."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it was at one version: JSON, or a `Ledger` for a `GpuNode`."""

    key: str
    version: int
    thing: Any


@dataclass(frozen=True, slots=True)
class Event:
    """One write, as watches tell of it."""

    kind: str
    stored: Stored
    at: float
    is_end: bool


class Store:
    """All objects; `on_write` is called after each write, before anybody hears of it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.version = 0
        self.log: list[Event] = []
        self.on_write: Callable[[Event], None] = lambda _: None
        self._clock = clock
        self._things: dict[str, dict[str, Stored]] = {PODS: {}, NODES: {}, GPU_NODES: {}}

    def get(self, kind: str, key: str) -> Stored | None:
        return self._things[kind].get(key)

    def all(self, kind: str) -> list[Stored]:
        return list(self._things[kind].values())

    def put(self, kind: str, key: str, thing: object, *, expected: int | None = None) -> Stored:
        """Write an object; `expected` is the version that it must have."""
        if expected is not None:
            before = self.get(kind, key)
            if before is None or before.version != expected:
                raise ConflictError
        self.version += 1
        if isinstance(thing, Mapping):
            thing = merged(thing, {"metadata": {"resourceVersion": str(self.version)}})
        stored = self._things[kind][key] = Stored(key, self.version, thing)
        self._tell(Event(kind, stored, self._clock(), is_end=False))
        return stored

    def delete(self, kind: str, key: str) -> None:
        before = self._things[kind].pop(key, None)
        if before is not None:
            self.version += 1
            last = Stored(key, self.version, before.thing)
            self._tell(Event(kind, last, self._clock(), is_end=True))

    def patch(self, kind: str, key: str, patch: Json) -> Stored:
        """Merge a patch into an object; it may name the version that the object must have."""
        before = self.get(kind, key)
        if before is None:
            raise ConflictError
        version = (patch.get("metadata") or {}).get("resourceVersion")
        expected = None if version is None else int(version)
        return self.put(kind, key, merged(before.thing, patch), expected=expected)

    def _tell(self, event: Event) -> None:
        self.log.append(event)
        self.on_write(event)


def merged(thing: Json, patch: Json) -> dict[str, Any]:
    """Return what a JSON merge patch makes of an object."""
    result = dict(thing)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = merged(result.get(key) or {}, value)
        else:
            result[key] = value
    return result


class Cache:
    """What one watcher knows of one kind, never older than what was put in.

    Args:
        store: is watched.
        kind: of objects.
        wants: the selector.
        on_put: called with each object before it is in the cache.
        on_end: called with each object that is gone.
    """

    def __init__(
        self,
        store: Store,
        kind: str,
        *,
        wants: Callable[[Any], bool] = lambda _: True,
        on_put: Callable[[Stored], None] = lambda _: None,
        on_end: Callable[[Stored], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._kind = kind
        self._wants = wants
        self._on_put = on_put
        self._on_end = on_end
        self._things: dict[str, Stored] = {}
        self._position = -1
        self._seen = 0

    @property
    def is_ready(self) -> bool:
        """Whether it was listed once."""
        return self._position >= 0

    def get(self, key: str) -> Stored | None:
        return self._things.get(key)

    def all(self) -> list[Stored]:
        return list(self._things.values())

    def list(self) -> bool:
        """Begin the watch (anew): take what is there now, and miss what was in between."""
        if self._position == len(self._store.log):
            return False
        self._position = len(self._store.log)
        listed = {each.key: each for each in self._store.all(self._kind) if self._wants(each.thing)}
        self._seen = self._store.version
        for key, kept in list(self._things.items()):
            if key not in listed:
                self._drop(kept)
        for stored in listed.values():
            self._put(stored)
        return True

    def hear(self, most: int = 1_000_000) -> bool:
        """Hear up to so many events; return whether there were any."""
        if not self.is_ready:
            return self.list()
        heard = 0
        for event in self._coming():
            if heard == most:
                break
            heard += 1
            self._take(event)
        return heard > 0

    def hear_until(self, at: float) -> bool:
        """Hear all that happened up to a moment."""
        heard = False
        for event in self._coming():
            if event.at > at:
                break
            heard = True
            self._take(event)
        return heard

    def put_back(self, stored: Stored) -> None:
        """Take what an own write returned."""
        if stored.version > self._seen:
            self._put(stored)

    def _coming(self) -> Iterator[Event]:
        """Yield the events to come that are about wanted objects; each is past when it is taken."""
        log = self._store.log
        while 0 <= self._position < len(log):
            event = log[self._position]
            if event.kind == self._kind and self._wants(event.stored.thing):
                yield event
                if self._position < len(log) and log[self._position] is event:
                    return  # not taken
            else:
                self._position += 1

    def _take(self, event: Event) -> None:
        self._position += 1
        self._seen = event.stored.version
        if not event.is_end:
            self._put(event.stored)
            return
        kept = self._things.get(event.stored.key)
        if kept is not None and kept.version <= event.stored.version:
            self._drop(kept)

    def _put(self, stored: Stored) -> None:
        before = self._things.get(stored.key)
        if before is not None:
            if stored.version <= before.version:
                return
            if _uid(before) != _uid(stored):
                self._drop(before)
        self._on_put(stored)
        self._things[stored.key] = stored

    def _drop(self, stored: Stored) -> None:
        self._things.pop(stored.key)
        self._on_end(stored)


def _uid(stored: Stored) -> Any:
    return stored.thing["metadata"].get("uid") if isinstance(stored.thing, Mapping) else None
