# SPDX-License-Identifier: Apache-2.0
"""The objects a watch has told of, never older than what was put in: pure, without a lock."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuslice.runtime.kube.resources import Json, key_of, version_of

Transform = Callable[[Json], Json]
Indexer = Callable[[Json], Iterable[str]]


class Change(enum.StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


Notice = tuple[Change, Json | None, Json | None]
"""A change with the object before (None when added) and after it (None when deleted)."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An object with what the cache needs of it, whatever the transform leaves."""

    key: str
    thing: Json
    version: int
    uid: str


class Objects:
    """Objects by key, with indexes.

    Args:
        transform: what to keep of each; it must leave ``metadata``'s name and namespace.
        indexes: per index, under which values an object is found.
    """

    def __init__(
        self, transform: Transform | None = None, indexes: Mapping[str, Indexer] | None = None
    ) -> None:
        self._transform = transform
        self._indexers = dict(indexes or {})
        self._indexes: dict[str, dict[str, dict[str, Json]]] = {name: {} for name in self._indexers}
        self._kept: dict[str, Kept] = {}
        self.seen = 0
        """The latest resourceVersion that the watch is known to have passed."""

    def get(self, key: str) -> Json | None:
        """Return the object of a key."""
        kept = self._kept.get(key)
        return kept.thing if kept else None

    def all(self) -> dict[str, Json]:
        """Return a new mapping of all of them."""
        return {key: kept.thing for key, kept in self._kept.items()}

    def indexed(self, index: str, value: str) -> tuple[Json, ...]:
        """Return the objects found under one value of an index."""
        return tuple(self._indexes[index].get(value, {}).values())

    def __len__(self) -> int:
        return len(self._kept)

    def kept(self, thing: Json) -> Kept:
        """Return what is kept of an object, so that a long list never is in memory whole."""
        return Kept(
            key=key_of(thing),
            thing=self._transform(thing) if self._transform else thing,
            version=version_of(thing),
            uid=thing["metadata"].get("uid") or "",
        )

    def relist(self, listed: Iterable[Kept], version: int) -> list[Notice]:
        """Take a whole list as the truth of its version; return what changed."""
        notices: list[Notice] = []
        present = set()
        for each in listed:
            present.add(each.key)
            notices += self._put(each)
        for key, kept in list(self._kept.items()):
            # What one of our own writes returned may be younger than the list.
            if key not in present and kept.version <= version:
                notices += self._drop(key)
        self.seen = max(self.seen, version)
        return notices

    def told(self, change: Change, thing: Json) -> list[Notice]:
        """Take one event of the watch; return what changed."""
        version = version_of(thing)
        self.seen = max(self.seen, version)
        if change is not Change.DELETED:
            return self._put(self.kept(thing))
        key = key_of(thing)
        kept = self._kept.get(key)
        # A new object of that name may have been put in before its predecessor's end was told.
        return self._drop(key) if kept and kept.version <= version else []

    def put_back(self, thing: Json) -> list[Notice]:
        """Take what a write returned, unless the watch has already passed it."""
        if version_of(thing) <= self.seen:
            return []
        return self._put(self.kept(thing))

    def _put(self, kept: Kept) -> list[Notice]:
        key = kept.key
        before = self._kept.get(key)
        if before is not None and kept.version <= before.version:
            return []
        notices: list[Notice] = []
        if before is not None and before.uid != kept.uid:
            # Its end was missed: listeners hear of two objects, not of one that turned.
            notices += self._drop(key)
            before = None
        self._unindex(before)
        self._kept[key] = kept
        for name, indexer in self._indexers.items():
            for value in indexer(kept.thing):
                self._indexes[name].setdefault(value, {})[key] = kept.thing
        change = Change.MODIFIED if before else Change.ADDED
        return [*notices, (change, before.thing if before else None, kept.thing)]

    def _drop(self, key: str) -> list[Notice]:
        kept = self._kept.pop(key)
        self._unindex(kept)
        return [(Change.DELETED, kept.thing, None)]

    def _unindex(self, kept: Kept | None) -> None:
        if kept is None:
            return
        for name, indexer in self._indexers.items():
            index = self._indexes[name]
            for value in indexer(kept.thing):
                found = index.get(value)
                if found is not None:
                    found.pop(kept.key, None)
                    if not found:
                        del index[value]


def identity(thing: Mapping[str, Any]) -> Json:
    """Return the part of metadata that a transform must keep, for transforms to start from."""
    about = thing["metadata"]
    kept = {
        field: about[field]
        for field in ("name", "namespace", "uid", "resourceVersion")
        if field in about
    }
    return {"metadata": kept}
