# SPDX-License-Identifier: Apache-2.0
"""The objects in memory: compare-and-swap by resourceVersion, and watches.

It knows metadata's name, namespace, uid and owner references, and nothing else about kinds.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import orjson

from gpuslice.sim.apiserver.history import Change, History, Stored, Watch, line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuslice.sim.apiserver.kinds import Resource
    from gpuslice.sim.apiserver.selectors import Matcher

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class StaleError(Exception):
    """The object is at another version than the writer believes, or is (not) there."""


class TooOldError(Exception):
    """The asked version lies before the window of history."""

    def __init__(self, asked: int, current: int) -> None:
        super().__init__(f"too old resource version: {asked} ({current})")


class Store:
    """All objects of the cluster, by resource.

    Args:
        history_limit: changes kept per resource for watches that start in the past.
    """

    def __init__(self, *, history_limit: int = 2_000) -> None:
        self._lock = threading.RLock()
        self._telling = threading.RLock()
        self._version = 0
        self._objects: dict[Resource, dict[Key, Stored]] = defaultdict(dict)
        self._histories: dict[Resource, History] = defaultdict(lambda: History(history_limit))
        self._dependents: dict[str, set[tuple[Resource, Key]]] = defaultdict(set)
        self._observers: dict[Resource, list[Callable[[], None]]] = defaultdict(list)

    @property
    def version(self) -> int:
        return self._version

    def get(self, resource: Resource, namespace: str, name: str) -> Stored | None:
        return self._objects.get(resource, {}).get((namespace, name))

    def select(
        self, resource: Resource, namespace: str = "", matches: Matcher | None = None
    ) -> tuple[list[Stored], int]:
        """Return the selected objects, ordered by key, and the version that they show."""
        with self._lock:
            version = self._version
            items = sorted(self._objects[resource].items())
        return [
            stored
            for (where, _), stored in items
            if (not namespace or where == namespace)
            and (matches is None or matches(stored.content))
        ], version

    def write(
        self, resource: Resource, content: dict[str, Any], *, replaces: Stored | None
    ) -> Stored:
        """Create an object, or replace the very version that the writer read.

        Args:
            resource: where it belongs.
            content: the object, which becomes the store's; its resourceVersion is set.
            replaces: what the writer read, or None to create.

        Raises:
            StaleError: when something else is stored there now.
        """
        meta = content["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        with self._lock:
            if self._objects[resource].get(key) is not replaces:
                raise StaleError
            self._version += 1
            meta["resourceVersion"] = str(self._version)
            stored = Stored(
                content=content,
                encoded=orjson.dumps(content),
                version=self._version,
                namespace=key[0],
                name=key[1],
            )
            self._objects[resource][key] = stored
            self._link(resource, key, replaces, stored)
            self._histories[resource].record(Change(before=replaces, now=stored))
        self._tell(resource)
        return stored

    def remove(self, resource: Resource, stored: Stored) -> Stored:
        """Take out the very version that the writer read; it is seen at a version of its own.

        Raises:
            StaleError: when something else, or nothing, is stored there now.
        """
        key = (stored.namespace, stored.name)
        with self._lock:
            if self._objects[resource].get(key) is not stored:
                raise StaleError
            self._version += 1
            content = stored.copy()
            content["metadata"]["resourceVersion"] = str(self._version)
            last = Stored(
                content=content,
                encoded=orjson.dumps(content),
                version=self._version,
                namespace=key[0],
                name=key[1],
            )
            del self._objects[resource][key]
            self._link(resource, key, stored, None)
            self._histories[resource].record(Change(before=stored, now=last, is_removal=True))
        self._tell(resource)
        return last

    def watch(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        matches: Matcher | None = None,
        since: int | None = None,
        listing_shape: Mapping[str, Any] | None = None,
    ) -> Watch:
        """Start a watch.

        Args:
            resource: what to watch.
            namespace: empty for all.
            matches: the selector.
            since: the version after which changes are wanted, None for the objects of now first.
            listing_shape: with `since` None, a bookmark of this apiVersion and kind marks the end
                of the objects of now.

        Raises:
            TooOldError: when the changes since then aren't all known any more.
        """
        watch = Watch(namespace=namespace, matches=matches)
        with self._lock:
            history = self._histories[resource]
            if since is None:
                for _, stored in sorted(self._objects[resource].items()):
                    if watch.selects(stored):
                        watch.push(line("ADDED", stored.encoded))
                if listing_shape is not None:
                    end = {INITIAL_EVENTS_END: "true"}
                    watch.push(_bookmark(listing_shape, self._version, end))
                history.join(watch, self._version)
            else:
                if not history.reaches(since):
                    raise TooOldError(since, self._version)
                history.join(watch, since)
        return watch

    def bookmark(self, watch: Watch, shape: Mapping[str, Any]) -> None:
        """Tell a watcher the version of now, after all that it was told before."""
        with self._lock:
            watch.push(_bookmark(shape, self._version))

    def unwatch(self, resource: Resource, watch: Watch) -> None:
        with self._lock:
            self._histories[resource].leave(watch)

    def end_watches(self) -> None:
        with self._lock:
            for history in self._histories.values():
                history.end_all()

    def compact(self) -> None:
        """Forget all history: watches from before this moment are answered 410."""
        with self._lock:
            for history in self._histories.values():
                history.forget(self._version)

    def dependents(self, uid: str) -> list[tuple[Resource, Key]]:
        with self._lock:
            return sorted(self._dependents.get(uid, ()))

    def resources(self) -> list[Resource]:
        with self._lock:
            return sorted(self._objects)

    def observe(self, resource: Resource, changed: Callable[[], None]) -> None:
        """Have a function called after every change of a resource, in the writer's thread."""
        self._observers[resource].append(changed)

    def _tell(self, resource: Resource) -> None:
        # One at a time: whoever is last reads the newest state, so the newest state prevails.
        for changed in self._observers.get(resource, ()):
            with self._telling:
                changed()

    def _link(
        self, resource: Resource, key: Key, before: Stored | None, now: Stored | None
    ) -> None:
        old, new = owners(before.content if before else None), owners(now.content if now else None)
        for uid in old - new:
            self._dependents[uid].discard((resource, key))
        for uid in new - old:
            self._dependents[uid].add((resource, key))


def owners(content: Mapping[str, Any] | None) -> set[str]:
    """Return the uids of an object's owners."""
    references = ((content or {}).get("metadata") or {}).get("ownerReferences") or ()
    return {reference["uid"] for reference in references if reference.get("uid")}


def _bookmark(
    shape: Mapping[str, Any], version: int, annotations: Mapping[str, str] | None = None
) -> bytes:
    """Encode a BOOKMARK event of an otherwise empty object of this apiVersion and kind."""
    meta: dict[str, Any] = {"resourceVersion": str(version)}
    if annotations:
        meta["annotations"] = annotations
    return line("BOOKMARK", orjson.dumps({**shape, "metadata": meta}))
