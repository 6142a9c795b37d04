# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks on snapshots: what is hard to plant in a cluster."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deviceplugin import inventory
from gpuslice.cli.doctor import checks, cluster_checks, node_checks, pod_checks, webhook_checks
from gpuslice.cli.doctor.command import lines
from gpuslice.cli.doctor.findings import Severity
from gpuslice.cli.doctor.snapshot import SettingsFile, Snapshot, Trial
from gpuslice.contract import gpunode
from gpuslice.contract.names import GpuUuid
from gpuslice.contract.slices import SliceRule
from gpuslice.runtime import settings
from tests.unit.webhook.ledgermaking import build_ledger, with_claim
from webhook import certs

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
GPU = {"uuid": "GPU-1", "index": 0, "memoryMiB": 23034, "slices": 100}


def gpu_node(**status: Any) -> dict[str, Any]:
    spec = {"mode": "time-slicing", "sliceBy": "fraction", "gpus": [GPU]}
    return {
        "metadata": {"name": "node-a", "resourceVersion": "7"},
        "spec": spec,
        "status": {"serving": True, **status},
    }


def sharing_pod(**status: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu-slice": "50", "gpuslice.dev/fit-0.5": "1"}
    return {
        "metadata": {
            "name": "p",
            "namespace": "default",
            "uid": "uid-p",
            "labels": {"gpuslice.dev/share": "0.5"},
            "creationTimestamp": (NOW - timedelta(minutes=2)).isoformat(),
        },
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending", **status},
    }


def hook(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": f"{name}.gpuslice.dev", "clientConfig": {}, **fields}


def configuration(*hooks: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return ({"metadata": {"name": "gpuslice"}, "webhooks": list(hooks)},)


@pytest.mark.parametrize(
    ("version", "is_old"),
    [
        ("v1.33.9", True),
        ("v1.34.0", False),
        ("v1.36.2-eks-1", False),
        ("v2.0.0", False),
        ("", False),
    ],
)
def test_kubernetes_is_one_that_is_supported(version: str, *, is_old: bool) -> None:
    assert bool([*cluster_checks.versions(Snapshot(now=NOW, version=version))]) == is_old


def test_a_pod_that_waits_though_there_is_room_is_found() -> None:
    (found,) = pod_checks.waiting(Snapshot(now=NOW, pods=(sharing_pod(),), gpu_nodes=(gpu_node(),)))
    assert found.problem == "it is Pending though node-a could take it"
    assert "describe pod p" in found.fix


def test_a_pod_that_waits_rightly_or_not_for_long_is_none() -> None:
    full = gpu_node(
        claims=[
            {
                "pod": {"namespace": "default", "name": "q", "uid": "uid-q"},
                "container": "c",
                "share": "1",
                "state": "Held",
                "shape": [{"gpu": "GPU-1", "memoryMiB": 23034, "slices": 100}],
            }
        ]
    )
    waits = Snapshot(now=NOW, pods=(sharing_pod(),), gpu_nodes=(full,))
    assert list(pod_checks.waiting(waits)) == []
    early = Snapshot(
        now=NOW - timedelta(seconds=100), pods=(sharing_pod(),), gpu_nodes=(gpu_node(),)
    )
    assert list(pod_checks.waiting(early)) == []


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfgpuslice.dev/fit-0.5"])
def test_a_pod_that_kubelet_refused_is_found(reason: str) -> None:
    pod = sharing_pod(phase="Failed", reason=reason, message="why")
    (found,) = pod_checks.refused(Snapshot(now=NOW, pods=(pod,)))
    assert found.problem.endswith(f"{reason}: why")


def test_a_pod_that_failed_by_itself_is_none() -> None:
    pod = sharing_pod(phase="Failed", reason="Error")
    assert list(pod_checks.refused(Snapshot(now=NOW, pods=(pod,)))) == []


@pytest.mark.parametrize(
    ("ahead", "severity"),
    [
        (timedelta(days=-60), None),
        (timedelta(days=85), Severity.WARNING),
        (timedelta(days=91), Severity.ERROR),
    ],
    ids=["for long", "for days", "expired"],
)
def test_a_certificate_that_ends_is_found(ahead: timedelta, severity: Severity | None) -> None:
    authority = certs.new_authority(NOW)
    leaf = certs.new_leaf(authority, ("a.b.svc",), NOW)
    secret = {
        "metadata": {"name": "tls"},
        "data": {"tls.crt": base64.b64encode(leaf.certificate_pem).decode()},
    }
    found = list(webhook_checks.trust(Snapshot(now=NOW + ahead, secrets=(secret,))))
    assert [each.severity for each in found] == ([severity] if severity else [])


def test_an_authority_among_several_in_a_bundle_will_do() -> None:
    old, new = certs.new_authority(NOW), certs.new_authority(NOW + timedelta(days=1))
    leaf = certs.new_leaf(new, ("a.b.svc",), NOW + timedelta(days=1))
    both = base64.b64encode(old.certificate_pem + new.certificate_pem).decode()
    secret = {
        "metadata": {"name": "tls"},
        "data": {"tls.crt": base64.b64encode(leaf.certificate_pem).decode()},
    }
    entry = hook("pods", clientConfig={"caBundle": both})
    snapshot = Snapshot(now=NOW, secrets=(secret,), mutating=configuration(entry))
    assert list(webhook_checks.trust(snapshot)) == []


def test_a_resource_name_that_the_conditions_dont_know_is_found() -> None:
    conditions = [{"name": "a", "expression": "'nvidia.com/gpu-slice' in x"}]
    entry = hook("pods", matchConditions=conditions)
    other = SettingsFile(
        namespace="gpuslice", settings=settings.load(overrides={"resourceName": "a.b/c"})
    )
    binding = hook("bindings", failurePolicy="Ignore")
    snapshot = Snapshot(
        now=NOW, mutating=configuration(entry, binding), settings_files=(other, other)
    )
    (found,) = webhook_checks.entries(snapshot)
    assert "a.b/c" in found.problem


def test_two_failure_policies_of_the_arbiter_are_found() -> None:
    binding = hook("bindings", failurePolicy="Fail")
    snapshot = Snapshot(now=NOW, mutating=configuration(hook("pods"), binding))
    (found,) = webhook_checks.entries(snapshot)
    assert found.severity is Severity.WARNING
    assert "is Fail, the setting arbiterFailurePolicy Ignore" in found.problem


def test_admission_that_refuses_or_overlooks_is_found() -> None:
    hooks = configuration(hook("pods"))
    refused = Snapshot(now=NOW, mutating=hooks, trial=Trial(error="no route to host"))
    (found,) = webhook_checks.trial(refused)
    assert "no route to host" in found.problem
    plain = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    (found,) = webhook_checks.trial(Snapshot(now=NOW, mutating=hooks, trial=Trial(pod=plain)))
    assert "passes unchanged" in found.problem
    admitted = Snapshot(now=NOW, mutating=hooks, trial=Trial(pod=sharing_pod()))
    assert list(webhook_checks.trial(admitted)) == []


@pytest.mark.parametrize(
    ("wanted", "ready", "severity"),
    [(2, 2, None), (2, 1, Severity.WARNING), (2, 0, Severity.ERROR), (0, 0, Severity.ERROR)],
)
def test_a_webhook_that_isnt_ready_is_found(
    wanted: int, ready: int, severity: Severity | None
) -> None:
    deployment = {
        "metadata": {"name": "gpuslice-webhook", "namespace": "gpuslice"},
        "spec": {"replicas": wanted},
        "status": {"readyReplicas": ready},
    }
    found = list(webhook_checks.readiness(Snapshot(now=NOW, deployments=(deployment,))))
    assert [each.severity for each in found] == ([severity] if severity else [])


def test_what_cant_be_read_is_said_once_and_not_found_missing() -> None:
    kinds = ("definitions", "settings", "policies", "mutating", "deployments", "daemon sets")
    snapshot = Snapshot(now=NOW, unreadable=tuple((kind, "forbidden") for kind in kinds))
    found = checks.examine(snapshot)
    assert [each.subject for each in found["access"]] == list(kinds)
    assert sum(map(len, found.values())) == len(kinds)


def test_an_empty_cluster_lacks_everything() -> None:
    found = checks.examine(Snapshot(now=NOW))
    missing = {name for name, all_ in found.items() if all_}
    assert missing == {
        *("definitions", "settings", "policies", "webhook-ready", "webhook-entries", "agents")
    }


def paths(value: Any, prefix: str = "") -> set[str]:
    """Return the paths of an object's fields, as the check of definitions writes them."""
    if isinstance(value, list):
        return set().union(*(paths(each, f"{prefix}[]") for each in value))
    if not isinstance(value, dict):
        return {prefix}
    start = f"{prefix}." if prefix else ""
    return set().union(*(paths(inner, f"{start}{key}") for key, inner in value.items()))


def test_the_definitions_are_asked_for_every_field_that_is_written() -> None:
    gpu = inventory.Gpu(
        uuid=GpuUuid("GPU-1"),
        index=0,
        product="x",
        memory_mib=1,
        numa_node=0,
        mig_parent=GpuUuid("GPU-0"),
    )
    spec = inventory.spec_of(inventory.Inventory(gpus=(gpu,)), SliceRule(), mode="time-slicing")
    ledger = with_claim(build_ledger(), "1", "0.5", pod_gone=True)
    ledger = ledger.with_bind(ledger.claims[0].pod.uid)
    written = paths({"spec": spec, "status": gpunode.status_of(ledger)})
    asked = cluster_checks.FIELDS["gpunodes.gpuslice.dev"]
    assert {each for each in written if not each.startswith(asked)} == set()


@pytest.mark.parametrize(
    ("labels", "is_one"),
    [
        ({}, False),
        ({"nvidia.com/gpu.present": "true"}, True),
        ({"nvidia.com/gpu.present": "false"}, False),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, True),
    ],
)
def test_a_gpu_node_is_one_that_the_daemon_set_selects(
    labels: dict[str, str], *, is_one: bool
) -> None:
    terms = [
        {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}
        for key, operator, values in (
            ("nvidia.com/gpu.present", "In", ["true"]),
            ("cloud.google.com/gke-accelerator", "Exists", []),
        )
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    daemon_set = {
        "metadata": {"name": "d", "namespace": "x"},
        "spec": {"template": {"spec": {"affinity": {"nodeAffinity": required}}}},
    }
    node = {"metadata": {"name": "node-a", "labels": labels}}
    snapshot = Snapshot(now=NOW, daemon_sets=(daemon_set,), nodes=(node,))
    assert list(snapshot.gpu_node_names()) == (["node-a"] if is_one else [])
    assert any(each.subject == "node/node-a" for each in node_checks.agents(snapshot)) == is_one


def test_colours_are_left_out_where_they_are_not_wanted() -> None:
    found = checks.examine(Snapshot(now=NOW))
    assert "\x1b[" in next(lines(found, {}))
    assert not any("\x1b[" in line for line in lines(found, {"NO_COLOR": "1"}, wide=True))
