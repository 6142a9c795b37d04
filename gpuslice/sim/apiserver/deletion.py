# SPDX-License-Identifier: Apache-2.0
"""Deleting: grace for running pods, finalizers, and what belongs to what is deleted."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from gpuslice.sim.apiserver import pods
from gpuslice.sim.apiserver.kinds import NAMESPACES, PODS, Resource
from gpuslice.sim.apiserver.objects import timestamp
from gpuslice.sim.apiserver.store import StaleError, Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.sim.apiserver.history import Stored


class Deletion:
    """Deletes objects as their kind wants it.

    Args:
        store: where they are.
        clock: the time of day, with its zone.
    """

    def __init__(self, store: Store, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock

    def delete(
        self,
        resource: Resource,
        stored: Stored,
        *,
        grace_seconds: int | None = None,
        policy: str = "Background",
    ) -> tuple[Stored, bool]:
        """Delete one version of an object, or mark it as being deleted.

        Args:
            resource: its resource.
            stored: the version that the caller read.
            grace_seconds: as asked for; None for the pod's own.
            policy: Background, Foreground (taken as Background) or Orphan.

        Returns:
            The object as it is now or was last, and whether it is gone.

        Raises:
            StaleError: when the object has changed since.
        """
        grace = 0
        if resource == PODS.resource:
            grace = pods.grace_seconds(stored.content, grace_seconds)
        meta = stored.content["metadata"]
        is_leaving = "deletionTimestamp" in meta
        if grace > 0 or meta.get("finalizers"):
            if is_leaving and meta.get("deletionGracePeriodSeconds", 0) <= grace:
                return stored, False
            return self._mark(resource, stored, grace), False
        last = self._store.remove(resource, stored)
        self._follow(resource, last, policy)
        return last, True

    def finish(self, resource: Resource, stored: Stored) -> Stored:
        """Remove an object that only its finalizers had held, if this is one.

        Raises:
            StaleError: when the object has changed since.
        """
        meta = stored.content["metadata"]
        held = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds", 0) > 0
        if "deletionTimestamp" not in meta or held:
            return stored
        last = self._store.remove(resource, stored)
        self._follow(resource, last, "Background")
        return last

    def _mark(self, resource: Resource, stored: Stored, grace: int) -> Stored:
        content = stored.copy()
        meta: dict[str, Any] = content["metadata"]
        meta["deletionTimestamp"] = timestamp(self._clock() + timedelta(seconds=grace))
        meta["deletionGracePeriodSeconds"] = grace
        if "generation" in meta:
            meta["generation"] += 1
        return self._store.write(resource, content, replaces=stored)

    def _follow(self, resource: Resource, last: Stored, policy: str) -> None:
        """Delete what the deleted object owned, or let go of it."""
        uid = last.content["metadata"].get("uid", "")
        for dependent, (namespace, name) in self._store.dependents(uid):
            self._release(dependent, namespace, name, uid, policy)
        if resource == NAMESPACES.resource:
            for inner in self._store.resources():
                for stored in self._store.select(inner, last.name)[0]:
                    self._remove_at_once(inner, stored.namespace, stored.name)

    def _release(
        self, resource: Resource, namespace: str, name: str, uid: str, policy: str
    ) -> None:
        while (stored := self._store.get(resource, namespace, name)) is not None:
            references = stored.content["metadata"].get("ownerReferences") or ()
            others = [reference for reference in references if reference.get("uid") != uid]
            try:
                if not others and policy != "Orphan":
                    self.delete(resource, stored)
                elif len(others) < len(references):
                    content = stored.copy()
                    content["metadata"]["ownerReferences"] = others
                    if not others:
                        del content["metadata"]["ownerReferences"]
                    self._store.write(resource, content, replaces=stored)
            except StaleError:
                continue
            return

    def _remove_at_once(self, resource: Resource, namespace: str, name: str) -> None:
        while (stored := self._store.get(resource, namespace, name)) is not None:
            try:
                self._store.remove(resource, stored)
            except StaleError:
                continue
            return
