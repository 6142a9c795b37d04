# SPDX-License-Identifier: Apache-2.0
"""Which container holds which devices, and what the plugin answered for it.

A pod's devices are its own for the pod's life: a container that has ended keeps them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

NO_NUMA: Final = -1
"""Where kubelet files a device without topology."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The devices of one resource that one container holds."""

    pod_uid: str
    container: str
    resource: str
    ids_by_numa: Mapping[int, tuple[str, ...]]
    """Device ids by NUMA node; a device of several nodes stands under each."""
    response: bytes
    """The plugin's ContainerAllocateResponse, serialised."""

    @property
    def ids(self) -> frozenset[str]:
        """The devices, whatever their NUMA node."""
        return frozenset(each for ids in self.ids_by_numa.values() for each in ids)


class Holdings:
    """All holdings of a node. Holds no lock: its owner does."""

    def __init__(self, holdings: Iterator[Holding] | tuple[Holding, ...] = ()) -> None:
        self._by_key = {(each.pod_uid, each.container, each.resource): each for each in holdings}

    def __iter__(self) -> Iterator[Holding]:
        return iter(tuple(self._by_key.values()))

    def insert(self, holding: Holding) -> None:
        """Add a holding, in place of an earlier one of that container and resource."""
        self._by_key[holding.pod_uid, holding.container, holding.resource] = holding

    def ids_of(self, pod_uid: str, container: str, resource: str) -> frozenset[str] | None:
        """Return a container's devices of a resource, None where it was never given any."""
        holding = self._by_key.get((pod_uid, container, resource))
        return holding.ids if holding else None

    def of_container(self, pod_uid: str, container: str) -> tuple[Holding, ...]:
        """Return a container's holdings."""
        return tuple(
            each for each in self if each.pod_uid == pod_uid and each.container == container
        )

    def pods(self) -> frozenset[str]:
        """Return the UIDs of the pods that hold something."""
        return frozenset(each.pod_uid for each in self)

    def drop_all_but(self, pod_uids: Container[str]) -> bool:
        """Forget the pods that are not among `pod_uids`; whether there was any."""
        kept = {key: each for key, each in self._by_key.items() if each.pod_uid in pod_uids}
        dropped = len(kept) < len(self._by_key)
        self._by_key = kept
        return dropped

    def ids_by_resource(self) -> dict[str, set[str]]:
        """Return all devices that are held, by resource."""
        held: dict[str, set[str]] = {}
        for each in self:
            held.setdefault(each.resource, set()).update(each.ids)
        return held
