# SPDX-License-Identifier: Apache-2.0
"""All checks, in the order in which their findings are best mended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gpuslice.cli.doctor import cluster_checks, node_checks, pod_checks, webhook_checks
from gpuslice.cli.doctor.findings import Check, Finding
from gpuslice.cli.doctor.snapshot import Snapshot

CHECKS: Final[Mapping[str, Check]] = {
    "access": cluster_checks.unreadable,
    "kubernetes": cluster_checks.versions,
    "definitions": cluster_checks.definitions,
    "settings": cluster_checks.settings,
    "policies": cluster_checks.policies,
    "webhook-ready": webhook_checks.readiness,
    "webhook-entries": webhook_checks.entries,
    "webhook-trust": webhook_checks.trust,
    "admission": webhook_checks.trial,
    "agents": node_checks.agents,
    "gpunodes": node_checks.ledgers,
    "publication": node_checks.publication,
    "sold-twice": node_checks.sold_twice,
    "gpu-health": node_checks.health,
    "pods-refused": pod_checks.refused,
    "pods-unclaimed": pod_checks.unclaimed,
    "claims-orphaned": pod_checks.orphaned,
    "pods-waiting": pod_checks.waiting,
}


def examine(snapshot: Snapshot) -> dict[str, tuple[Finding, ...]]:
    """Return what each check finds."""
    return {name: tuple(check(snapshot)) for name, check in CHECKS.items()}


def lasting(
    first: Mapping[str, Iterable[Finding]], second: Mapping[str, Iterable[Finding]]
) -> dict[str, tuple[Finding, ...]]:
    """Return what two looks both found: a cluster at work is never quite still."""
    seen = {finding.key for found in first.values() for finding in found}
    return {
        name: tuple(finding for finding in found if finding.key in seen)
        for name, found in second.items()
    }
