# SPDX-License-Identifier: Apache-2.0
"""Whether sharing pods run, and have what the ledger says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from gpuslice.cli.doctor.findings import Finding, Severity
from gpuslice.cli.doctor.snapshot import Json, Snapshot
from gpuslice.contract import fits, pods
from gpuslice.contract.ledger import ClaimState

REFUSED_BY_KUBELET: Final = ("UnexpectedAdmissionError", "OutOf")
"""How the reason of a pod begins that kubelet's admission failed."""
PATIENCE: Final = timedelta(minutes=1)
"""A pod may wait so long though there is room: the scheduler tries again after seconds."""


def refused(snapshot: Snapshot) -> Iterator[Finding]:
    """No sharing pod was failed by kubelet's admission."""
    for pod in snapshot.pods:
        status = pod.get("status") or {}
        reason = str(status.get("reason") or "")
        if status.get("phase") == "Failed" and reason.startswith(REFUSED_BY_KUBELET):
            who = pods.ref(pod)
            yield Finding(
                check="pods-refused",
                subject=f"pod/{who}",
                problem=f"kubelet refused it on {pods.node_name(pod)}: {reason}: "
                f"{status.get('message') or ''}".rstrip(": "),
                fix=f"kubectl -n {who.namespace} delete pod {who.name}: it never runs; its owner "
                "makes a new one. If it comes again, set arbiterFailurePolicy: Fail",
            )


def unclaimed(snapshot: Snapshot) -> Iterator[Finding]:
    """Every sharing pod on a node is in that node's ledger, on the GPU that it names."""
    for pod in snapshot.pods:
        node = pods.node_name(pod)
        ledger = snapshot.ledgers.get(node) if node else None
        if ledger is None or pods.is_leaving(pod):
            continue
        who = pods.ref(pod)
        if ledger.claim_of(who.uid) is None:
            yield Finding(
                check="pods-unclaimed",
                subject=f"pod/{who}",
                problem=f"it is on node {node}, whose ledger has no claim of it: its memory isn't "
                "counted",
                fix="its agent enters it within seconds; else delete the pod and report it",
            )


def orphaned(snapshot: Snapshot) -> Iterator[Finding]:
    """Every claim has a pod."""
    if snapshot.is_unreadable("pods"):
        return
    there = {pods.ref(pod).uid for pod in snapshot.pods}
    for node, ledger in snapshot.ledgers.items():
        for claim in ledger.claims:
            if claim.pod.uid not in there and claim.state is ClaimState.HELD:
                yield Finding(
                    check="claims-orphaned",
                    subject=f"gpunode/{node}, pod {claim.pod}",
                    problem="a claim is held for a pod that is gone",
                    fix="its agent drops it within seconds while it runs: see agents",
                    severity=Severity.WARNING,
                )


def waiting(snapshot: Snapshot) -> Iterator[Finding]:
    """No pod waits for a share that there is room for."""
    for pod in snapshot.pods:
        if pods.node_name(pod) or pods.is_leaving(pod) or _age(pod, snapshot.now) < PATIENCE:
            continue
        ask = pods.ask(pod, snapshot.settings.resource_name)
        if ask is None:
            continue
        where = [node for node, ledger in snapshot.ledgers.items() if fits.more(ledger, ask.demand)]
        if where:
            who = pods.ref(pod)
            yield Finding(
                check="pods-waiting",
                subject=f"pod/{who}",
                problem=f"it is Pending though {', '.join(sorted(where))} could take it",
                fix=f"kubectl -n {who.namespace} describe pod {who.name}: it asks for something "
                "else that is missing there (CPU, memory, a node label, a toleration)",
                severity=Severity.WARNING,
            )


def _age(pod: Json, now: datetime) -> timedelta:
    created = pods.meta_of(pod).get("creationTimestamp")
    return now - datetime.fromisoformat(created) if isinstance(created, str) else timedelta()
