# SPDX-License-Identifier: Apache-2.0
"""Whether each GPU node is served, and says what its ledger says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gpuslice.cli.doctor.findings import Finding, Severity
from gpuslice.cli.doctor.snapshot import NODES_NAMESPACE, Json, Snapshot, namespace_of
from gpuslice.cli.doctor.webhook_checks import INSTALL
from gpuslice.contract import names, pods
from gpuslice.contract.ledger import Ledger
from gpuslice.runtime.kube.resources import version_of

MOST_NAMED: Final = 5


def _log_of(snapshot: Snapshot, node: str) -> str:
    place = namespace_of(snapshot.daemon_sets, NODES_NAMESPACE)
    for agent in snapshot.agents:
        if pods.node_name(agent) == node:
            return f"kubectl -n {place} logs {pods.meta_of(agent)['name']}"
    return f"kubectl -n {place} get pods -o wide --field-selector spec.nodeName={node}"


def agents(snapshot: Snapshot) -> Iterator[Finding]:
    """A device plugin runs on every GPU node."""
    if snapshot.is_unreadable("daemon sets") or snapshot.is_unreadable("agents"):
        return
    place = namespace_of(snapshot.daemon_sets, NODES_NAMESPACE)
    if not snapshot.daemon_sets:
        yield Finding(
            check="agents",
            subject="daemonset/gpuslice-device-plugin",
            problem="there is no DaemonSet of the device plugin",
            fix=INSTALL,
        )
        return
    ready = {pods.node_name(each) for each in snapshot.agents if _is_ready(each)}
    there = {pods.node_name(each) for each in snapshot.agents}
    wanted = list(snapshot.gpu_node_names())
    for node in wanted:
        if node not in ready:
            what = "is not ready" if node in there else "is not there"
            yield Finding(
                check="agents",
                subject=f"node/{node}",
                problem=f"its device plugin {what}: no share is placed there",
                fix=_log_of(snapshot, node)
                if node in there
                else f"kubectl -n {place} describe daemonset gpuslice-device-plugin "
                "(a taint that it doesn't tolerate?)",
            )
    if not wanted:
        yield Finding(
            check="agents",
            subject="nodes",
            problem="no node has a label by which the device plugin's DaemonSet knows GPU nodes",
            fix="kubectl label node NAME gpuslice.dev/gpu-node=true",
        )


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def ledgers(snapshot: Snapshot) -> Iterator[Finding]:
    """Each GPU node has a ledger that is served and of the settings' making."""
    if snapshot.is_unreadable("gpu nodes"):
        return
    for node in snapshot.gpu_node_names():
        ledger = snapshot.ledgers.get(node)
        if ledger is None:
            yield Finding(
                check="gpunodes",
                subject=f"gpunode/{node}",
                problem="it is not there: its device plugin found no GPU, or can't write",
                fix=_log_of(snapshot, node),
            )
        elif not ledger.gpus:
            yield Finding(
                check="gpunodes",
                subject=f"gpunode/{node}",
                problem="it has no GPU: the driver finds none",
                fix=f"run nvidia-smi on {node}; is devicePlugin.driverRoot right?",
            )
        elif not ledger.serving:
            yield Finding(
                check="gpunodes",
                subject=f"gpunode/{node}",
                problem="it is not serving: kubelet has no open stream of the device plugin",
                fix=_log_of(snapshot, node),
            )
    rule = snapshot.settings.slice_rule
    for node, ledger in snapshot.ledgers.items():
        if snapshot.node(node) is None and not snapshot.is_unreadable("nodes"):
            yield Finding(
                check="gpunodes",
                subject=f"gpunode/{node}",
                problem="there is no such node any more",
                fix=f"kubectl delete gpunode {node}",
                severity=Severity.WARNING,
            )
        wrong = [gpu for gpu in ledger.gpus if gpu.slices != rule.slices_of_gpu(gpu.memory_mib)]
        if wrong:
            wanted = rule.slices_of_gpu(wrong[0].memory_mib)
            place = namespace_of(snapshot.daemon_sets, NODES_NAMESPACE)
            yield Finding(
                check="gpunodes",
                subject=f"gpunode/{node}",
                problem=f"GPU {wrong[0].uuid} is cut into {wrong[0].slices} slices, "
                f"by the settings it would be {wanted}",
                fix=f"kubectl -n {place} rollout restart daemonset/gpuslice-device-plugin",
            )


def publication(snapshot: Snapshot) -> Iterator[Finding]:
    """The Node offers slices and fits, and they are those of its ledger."""
    versions = {str(pods.meta_of(each)["name"]): version_of(each) for each in snapshot.gpu_nodes}
    for node, ledger in snapshot.ledgers.items():
        found = snapshot.node(node)
        if found is not None and ledger.serving and ledger.gpus:
            yield from _published(snapshot, found, ledger, versions[node])


def _published(snapshot: Snapshot, node: Json, ledger: Ledger, version: int) -> Iterator[Finding]:
    subject = f"node/{ledger.node}"
    log = _log_of(snapshot, ledger.node)
    shown = pods.annotations_of(node).get(names.LEDGER_ANNOTATION, "")
    if not shown.isdecimal() or int(shown) < version:
        yield Finding(
            check="ledger-annotation",
            subject=subject,
            problem=f"{names.LEDGER_ANNOTATION} is {shown or 'absent'}, its ledger is at "
            f"{version}: the agent doesn't follow, and binds are denied",
            fix=log,
        )
    offered: Mapping[str, str] = (node.get("status") or {}).get("allocatable") or {}
    resource = snapshot.settings.resource_name
    if any(gpu.healthy for gpu in ledger.gpus) and offered.get(resource, "0") == "0":
        yield Finding(
            check="slices",
            subject=subject,
            problem=f"it offers no {resource}, though its device plugin serves",
            fix=f"{log}; is the setting resourceName the same in both namespaces?",
        )
    missing = sorted(
        str(each.share) for each in snapshot.demands if each.share.fit_resource not in offered
    )
    if missing:
        named = ", ".join(missing[:MOST_NAMED]) + (", ..." if len(missing) > MOST_NAMED else "")
        yield Finding(
            check="fits",
            subject=subject,
            problem=f"it publishes no fit for {named}: such pods are never placed there",
            fix=log,
        )


def sold_twice(snapshot: Snapshot) -> Iterator[Finding]:
    """Nobody else sells the GPUs that gpuslice shares."""
    for node in snapshot.ledgers:
        offered = ((snapshot.node(node) or {}).get("status") or {}).get("allocatable") or {}
        count = str(offered.get(names.WHOLE_GPU_RESOURCE, "0"))
        if count != "0":
            yield Finding(
                check="sold-twice",
                subject=f"node/{node}",
                problem=f"another device plugin sells {count} {names.WHOLE_GPU_RESOURCE} there: "
                "the same GPUs are promised twice",
                fix="keep NVIDIA's device plugin off this node (docs/migration.md); with the GPU "
                f"Operator: kubectl label node {node} nvidia.com/gpu.deploy.device-plugin=false",
            )


def health(snapshot: Snapshot) -> Iterator[Finding]:
    """All GPUs are well, and none has more claimed than there is."""
    for node, ledger in snapshot.ledgers.items():
        for gpu in ledger.gpus:
            if not gpu.healthy:
                yield Finding(
                    check="gpu-health",
                    subject=f"gpunode/{node}, GPU {gpu.index} {gpu.uuid}",
                    problem=f"it is unhealthy: {gpu.reason or 'no reason given'}",
                    fix="run nvidia-smi -q there; a reset or a reboot may be needed. "
                    f"Pods on it: kubectl gpuslice top pods -A | grep {node}",
                    severity=Severity.WARNING,
                )
        for uuid in ledger.overclaimed():
            gpu = ledger.gpu(uuid)
            yield Finding(
                check="over-claims",
                subject=f"gpunode/{node}, GPU {gpu.index} {uuid}",
                problem=f"more is claimed than there is: {ledger.free_mib(gpu)} MiB and "
                f"{ledger.free_slices(gpu)} slices are free",
                fix="delete pods on it until it fits (kubectl gpuslice top pods -A), "
                "and report it: this must never be",
            )
