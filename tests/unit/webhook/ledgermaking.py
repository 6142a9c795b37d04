# SPDX-License-Identifier: Apache-2.0
"""Ledgers, claims and pods for the arbiter's tests, and a cluster in memory."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable

from gpuslice.contract.ledger import Claim, ClaimState, Gpu, Ledger, Part, PodRef
from gpuslice.contract.names import GpuUuid, NodeName, PodUid
from gpuslice.contract.placement import Demand, Policy
from gpuslice.contract.pods import Ask
from gpuslice.contract.shares import parse_share
from gpuslice.contract.slices import SliceRule
from webhook.arbiter import Arbiter, Binding, Patience, Snapshot, SwapLostError
from webhook.sharingpods import SharingPod

MEMORY_MIB = 23034
RULE = SliceRule()
NODE = NodeName("node-a")


def build_ask(text: str, fit: str | None = None) -> Ask:
    share = parse_share(text)
    demand = Demand(share=share, slices=RULE.slices_of_share(share, [MEMORY_MIB]))
    return Ask(container="train", demand=demand, fit=parse_share(fit or text))


def ref(uid: str) -> PodRef:
    return PodRef(namespace="default", name=f"pod-{uid}", uid=PodUid(uid))


def build_ledger(gpus: int = 1, node: NodeName = NODE, *, serving: bool = True) -> Ledger:
    return Ledger(
        node=node,
        gpus=tuple(
            Gpu(
                uuid=GpuUuid(f"GPU-{node}-{index}"),
                index=index,
                product="x",
                memory_mib=MEMORY_MIB,
                slices=100,
            )
            for index in range(gpus)
        ),
        serving=serving,
    )


def with_claim(
    ledger: Ledger,
    uid: str,
    share: str,
    *,
    gpu: int = 0,
    state: ClaimState = ClaimState.HELD,
    pod_gone: bool = False,
) -> Ledger:
    ask = build_ask(share)
    part: Part = ask.demand.part_on(ledger.gpus[gpu])
    claim = Claim(
        pod=ref(uid),
        container="train",
        share=ask.demand.share,
        fit=ask.fit,
        state=state,
        shape=(part,),
        pod_gone=pod_gone,
    )
    return ledger.with_claim(claim)


def build_sharing_pod(
    uid: str,
    share: str | None,
    *,
    node: NodeName | None = None,
    asks_slices: bool = True,
    placement: Policy | None = None,
) -> SharingPod:
    return SharingPod(
        pod=ref(uid),
        ask=None if share is None else build_ask(share),
        asks_slices=asks_slices,
        node=node,
        has_ended=False,
        is_leaving=False,
        placement=placement,
    )


def build_binding(uid: str, node: NodeName = NODE, *, dry_run: bool = False) -> Binding:
    return Binding(
        namespace="default", name=f"pod-{uid}", uid=PodUid(uid), node=node, dry_run=dry_run
    )


class Store:
    """What the API server keeps: ledgers with versions, and pods. Each write is noted."""

    def __init__(self, *ledgers: Ledger) -> None:
        self.changed = threading.Condition()
        self.version = 1
        self.ledgers = {ledger.node: (ledger, 1) for ledger in ledgers}
        self.pods: dict[PodUid, SharingPod] = {}
        self.writes = 0
        self.reads = 0

    def put(self, ledger: Ledger) -> int:
        with self.changed:
            self.version += 1
            self.ledgers[ledger.node] = (ledger, self.version)
            self.changed.notify_all()
            return self.version

    def ledger(self, node: NodeName = NODE) -> Ledger:
        return self.ledgers[node][0]


class View:
    """One replica's caches: what it has seen of the store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.seen = dict(store.ledgers)
        self.lagging = False
        self.labelled = True
        self.gone: set[PodUid] = set()
        self.shown = True
        self.shown_calls: list[tuple[NodeName, int, str]] = []
        self.on_wait: Callable[[], object] | None = None
        self.waits = 0

    # Ledgers

    def snapshot(self, node: NodeName) -> Snapshot | None:
        if not self.lagging:
            self.seen = dict(self.store.ledgers)
        found = self.seen.get(node)
        return None if found is None else Snapshot(ledger=found[0], version=found[1])

    def all(self) -> Iterable[Ledger]:
        return [ledger for ledger, _ in self.seen.values()]

    def refresh(self, node: NodeName) -> None:
        self.store.reads += 1
        self.seen[node] = self.store.ledgers[node]

    def swap(self, snapshot: Snapshot, ledger: Ledger) -> int:
        with self.store.changed:
            if self.store.ledgers[ledger.node][1] != snapshot.version:
                raise SwapLostError("changed")
            self.store.writes += 1
            version = self.store.put(ledger)
            self.seen[ledger.node] = (ledger, version)
            return version

    def wait_for_change(self, node: NodeName, version: int, timeout_seconds: float) -> bool:
        self.waits += 1
        if self.on_wait is not None:
            on_wait, self.on_wait = self.on_wait, None
            on_wait()
        with self.store.changed:
            return self.store.changed.wait_for(
                lambda: self.store.ledgers[node][1] != version, timeout_seconds
            )

    # Pods

    def known(self, binding: Binding) -> SharingPod | None:
        found = self.store.pods.get(binding.uid or PodUid(""))
        return found if self.labelled and found is not None and found.ask else None

    def read(self, binding: Binding) -> SharingPod | None:
        self.store.reads += 1
        return self.store.pods.get(binding.uid or PodUid(""))

    def departing(self, uids: Collection[PodUid]) -> frozenset[PodUid]:
        return frozenset(self.gone.intersection(uids))

    # Nodes

    def wait_until_shown(
        self, node: NodeName, version: int, resource: str, timeout_seconds: float
    ) -> bool:
        assert timeout_seconds >= 0
        self.shown_calls.append((node, version, resource))
        return self.shown


def build_arbiter(
    view: View, clock: Callable[[], float] = lambda: 0.0, **patience: float
) -> Arbiter:
    chosen = dataclasses.replace(Patience(room_seconds=0.05), **patience)  # type: ignore[arg-type]  # by name
    return Arbiter(
        ledgers=view,
        pods_source=view,
        nodes=view,
        policy=Policy.PACK,
        patience=chosen,
        clock=clock,
    )
