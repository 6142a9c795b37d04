# SPDX-License-Identifier: Apache-2.0
"""What the invariants don't promise: each excuse is accounted for, one by one.

A pod that kubelet fails is a violation unless one of these says why not.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from gpuslice.contract.ledger import Ledger
from gpuslice.contract.names import GpuUuid, NodeName, PodUid
from gpuslice.contract.pods import has_ended
from tests.property.placement import podmaking
from tests.property.placement.apiserver import GPU_NODES, PODS, Event, Json, Store
from tests.property.placement.wire import Bind

STRANGER_SECONDS: Final = 10.0
"""So long after its end a stranger may still be mistaken for another (`UNKNOWN_POD_SECONDS`)."""
_PLUGIN_AWAY: Final = ("no healthy devices", "the plugin is gone", "no longer healthy")


class Excuse(enum.StrEnum):
    """Why a failed pod is none of the invariant's."""

    LEAVING = "it was being deleted: nobody waits for it"
    STRANGER = "a pod was bound to its node without an arbiter that answered in time"
    SUDDEN_DEATH = "its kubelet or device plugin had died without notice"
    DRAIN_GIVEN_UP = "its device plugin had waited for it long enough"
    SICK_GPU = "a GPU turned sick between the claim and the admission"


@dataclass(slots=True)
class NodeAccount:
    """What happened to one node."""

    strangers: set[PodUid] = field(default_factory=set)
    break_: Excuse | None = None
    """Why kubelet's last stream ended."""
    sick_at: dict[GpuUuid, float] = field(default_factory=dict)
    """When a GPU was sick last; infinite while it is."""


class Accounts:
    """Keeps what exceptions rest on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._nodes: dict[NodeName, NodeAccount] = {}
        self._bound_at: dict[PodUid, float] = {}
        self._ended_at: dict[PodUid, float] = {}

    def of(self, node: NodeName) -> NodeAccount:
        return self._nodes.setdefault(node, NodeAccount())

    def bound(self, bind: Bind, now: float) -> None:
        assert bind.uid is not None
        self._bound_at[bind.uid] = now
        if not bind.by_arbiter:
            self.of(bind.node).strangers.add(bind.uid)

    def written(self, event: Event) -> None:
        if event.kind == PODS and (event.is_end or has_ended(event.stored.thing)):
            self._ended_at.setdefault(podmaking.uid_of(event.stored.thing), event.at)

    def excuse(self, node: NodeName, pod: Json, reason: str, *, restarting: bool) -> Excuse | None:
        """Return which exception a pod that kubelet has failed falls under, if any.

        Args:
            node: kubelet's.
            pod: as kubelet knew it.
            reason: kubelet's.
            restarting: whether kubelet takes up what it finds at its start.
        """
        account = self.of(node)
        uid, name = podmaking.uid_of(pod), pod["metadata"]["name"]
        bound_at = self._bound_at[uid]
        stored = self._store.get(PODS, name)
        if stored is None or podmaking.uid_of(stored.thing) != uid:
            return Excuse.LEAVING
        if podmaking.is_deleting(stored.thing):
            return Excuse.LEAVING
        since = bound_at - STRANGER_SECONDS
        if any(self._ended_at.get(each, bound_at) >= since for each in account.strangers):
            return Excuse.STRANGER
        if restarting and not reason.startswith("OutOf"):
            return Excuse.SUDDEN_DEATH  # nor does it know which of its checkpoint's pods are dead
        if reason.startswith(_PLUGIN_AWAY) and account.break_ is not None:
            return account.break_
        return Excuse.SICK_GPU if self._is_sick(node, pod, bound_at) else None

    def _is_sick(self, node: NodeName, pod: Json, bound_at: float) -> bool:
        """Whether a claim of that size waits on a GPU that has been sick since."""
        size = int(podmaking.limits_of(pod)[podmaking.RESOURCE])
        stored = self._store.get(GPU_NODES, node)
        assert stored is not None
        ledger: Ledger = stored.thing
        sick = {gpu for gpu, at in self.of(node).sick_at.items() if at >= bound_at}
        return any(
            claim.total_slices == size and not sick.isdisjoint(claim.gpus)
            for claim in ledger.claims
        )
