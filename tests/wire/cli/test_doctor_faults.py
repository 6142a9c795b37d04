# SPDX-License-Identifier: Apache-2.0
"""The doctor finds each fault that is planted, and nothing where all is well."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuslice.cli import kubectl
from gpuslice.runtime.kube.resources import (
    ADMISSION_POLICIES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    GPU_NODES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
)
from gpuslice.runtime.kube.resources import VALIDATING_WEBHOOKS as VALIDATING
from tests.wire.cli.installation import DAEMON_SETS, DEPLOYMENTS, Installation, claim
from webhook import certs

Plant = Callable[[Installation], None]


def diagnose(
    installation: Installation, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[int, list[dict[str, Any]]]:
    arguments = ["doctor", "--kubeconfig", str(installation.kubeconfig), "--second-look", "0"]
    code = kubectl.main([*arguments, "-o", "json", *flags])
    return code, json.loads(capsys.readouterr().out)["items"]


def settings_of(installation: Installation, namespace: str, text: str) -> None:
    installation.client.patch(
        CONFIG_MAPS, "gpuslice-settings", {"data": {"settings.yaml": text}}, namespace=namespace
    )


def drop_crd(here: Installation) -> None:
    here.client.delete(CUSTOM_RESOURCE_DEFINITIONS, "gpushares.gpuslice.dev")


def age_crd(here: Installation) -> None:
    found = here.client.get(CUSTOM_RESOURCE_DEFINITIONS, "gpunodes.gpuslice.dev")
    status = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    del status["properties"]["claims"]["items"]["properties"]["podGone"]
    here.client.replace(CUSTOM_RESOURCE_DEFINITIONS, found)


def forget_trust(here: Installation) -> None:
    here.trust(b"")


def trust_another(here: Installation) -> None:
    here.trust(certs.new_authority(datetime.now(UTC)).certificate_pem)


def drop_binding_entry(here: Installation) -> None:
    found = here.client.get(MUTATING_WEBHOOKS, "gpuslice")
    found["webhooks"] = [each for each in found["webhooks"] if "bindings" not in each["name"]]
    here.client.replace(MUTATING_WEBHOOKS, found)


def drop_configurations(here: Installation) -> None:
    here.client.delete(MUTATING_WEBHOOKS, "gpuslice")
    here.client.delete(VALIDATING, "gpuslice")


def stop_webhook(here: Installation) -> None:
    here.status(DEPLOYMENTS, "gpuslice-webhook", {"readyReplicas": 0}, "gpuslice")


def drop_daemon_set(here: Installation) -> None:
    here.client.delete(DAEMON_SETS, "gpuslice-device-plugin", namespace="gpuslice-nodes")


def kill_agent(here: Installation) -> None:
    here.client.delete(PODS, "plugin-node-b", namespace="gpuslice-nodes", grace_seconds=0)


def break_agent(here: Installation) -> None:
    waiting = [{"type": "Ready", "status": "False"}]
    here.status(PODS, "plugin-node-b", {"conditions": waiting}, "gpuslice-nodes")


def drop_gpu_node(here: Installation) -> None:
    here.client.delete(GPU_NODES, "node-b")


def stop_serving(here: Installation) -> None:
    here.write("node-b", serving=False)


def lag_behind(here: Installation) -> None:
    found = here.client.get(GPU_NODES, "node-b")
    here.client.replace(
        GPU_NODES, {**found, "status": {**found["status"], "summary": {"gpus": "1"}}}, status=True
    )


def drop_fit(here: Installation) -> None:
    here.offer("node-b", {"gpuslice.dev/fit-0.25": None})


def drop_slices(here: Installation) -> None:
    here.offer("node-b", {"nvidia.com/gpu-slice": "0"})


def sell_twice(here: Installation) -> None:
    here.offer("node-b", {"nvidia.com/gpu": "1"})


def rename_resource(here: Installation) -> None:
    settings_of(here, "gpuslice-nodes", "resourceName: example.com/gpu-part")


def break_settings(here: Installation) -> None:
    settings_of(here, "gpuslice-nodes", "slicesPerGpus: 100")


def cut_otherwise(here: Installation) -> None:
    for namespace in ("gpuslice", "gpuslice-nodes"):
        settings_of(here, namespace, "slicesPerGpu: 50")


def sharing_pod(here: Installation, name: str, node: str | None, **status: Any) -> None:
    body = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {"gpu-fraction": "0.5"},
        },
        "spec": {"containers": [{"name": "main", "image": "ubuntu"}]},
    }
    made = here.client.create(PODS, body)
    if node is not None:
        # The arbiter is no part of this: the pod is bound without it.
        found = here.client.get(MUTATING_WEBHOOKS, "gpuslice")
        kept = found["webhooks"]
        found["webhooks"] = [each for each in kept if "bindings" not in each["name"]]
        found = here.client.replace(MUTATING_WEBHOOKS, found)
        here.client.bind(made, node)
        here.client.replace(MUTATING_WEBHOOKS, {**found, "webhooks": kept})
    if status:
        here.status(PODS, name, status, "default")


def refuse_pod(here: Installation) -> None:
    reason = {"reason": "UnexpectedAdmissionError", "message": "Allocate failed"}
    sharing_pod(here, "lost", "node-a", phase="Failed", **reason)


def run_unclaimed(here: Installation) -> None:
    sharing_pod(here, "free-rider", "node-a", phase="Running")


def overclaim(here: Installation) -> None:
    here.write("node-b", claims=[claim("a", "node-b", 20000, 50), claim("b", "node-b", 20000, 50)])


def orphan_claim(here: Installation) -> None:
    here.write("node-b", claims=[claim("gone", "node-b")])


def sicken_gpu(here: Installation) -> None:
    found = here.client.get(GPU_NODES, "node-b")
    found["spec"]["gpus"][0] |= {"healthy": False, "reason": "XID 79"}
    here.client.replace(GPU_NODES, found)
    here.follow("node-b")


def drop_policy(here: Installation) -> None:
    here.client.delete(ADMISSION_POLICIES, "gpuslice-agents")


def drop_node(here: Installation) -> None:
    here.client.delete(PODS, "plugin-node-b", namespace="gpuslice-nodes", grace_seconds=0)
    here.client.delete(NODES, "node-b")


FAULTS = [
    (drop_crd, "definitions", "gpushares.gpuslice.dev", "deploy/crds"),
    (age_crd, "definitions", "gpunodes.gpuslice.dev", "deploy/crds"),
    (forget_trust, "webhook-trust", "pods.gpuslice.dev", "rollout restart"),
    (trust_another, "webhook-trust", "pods.gpuslice.dev", "rollout restart"),
    (drop_binding_entry, "webhook-entries", "bindings.gpuslice.dev", "install.yaml"),
    (drop_configurations, "webhook-entries", "pods.gpuslice.dev", "install.yaml"),
    (stop_webhook, "webhook-ready", "deployment/gpuslice-webhook", "kubectl -n gpuslice logs"),
    (drop_daemon_set, "agents", "daemonset/", "install.yaml"),
    (kill_agent, "agents", "node/node-b", "taint"),
    (break_agent, "agents", "node/node-b", "logs plugin-node-b"),
    (drop_gpu_node, "gpunodes", "gpunode/node-b", "logs plugin-node-b"),
    (stop_serving, "gpunodes", "gpunode/node-b", "logs plugin-node-b"),
    (lag_behind, "ledger-annotation", "node/node-b", "logs plugin-node-b"),
    (drop_fit, "fits", "node/node-b", "logs plugin-node-b"),
    (drop_slices, "slices", "node/node-b", "resourceName"),
    (sell_twice, "sold-twice", "node/node-b", "docs/migration.md"),
    (rename_resource, "settings", "in gpuslice-nodes", "make both equal"),
    (break_settings, "settings", "in gpuslice-nodes", "edit configmap"),
    (cut_otherwise, "gpunodes", "gpunode/node-b", "rollout restart daemonset"),
    (refuse_pod, "pods-refused", "pod/default/lost", "delete pod lost"),
    (run_unclaimed, "pods-unclaimed", "pod/default/free-rider", "agent"),
    (overclaim, "over-claims", "GPU-node-b", "kubectl gpuslice top pods"),
    (orphan_claim, "claims-orphaned", "pod default/gone", "agent"),
    (sicken_gpu, "gpu-health", "GPU-node-b", "nvidia-smi"),
    (drop_policy, "policies", "gpuslice-agents", "install.yaml"),
    (drop_node, "gpunodes", "gpunode/node-b", "kubectl delete gpunode"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=[each[0].__name__ for each in FAULTS])
def test_a_planted_fault_is_found_with_its_fix(
    installation: Installation,
    capsys: pytest.CaptureFixture[str],
    fault: tuple[Plant, str, str, str],
) -> None:
    plant, check, subject, fix = fault
    plant(installation)
    code, found = diagnose(installation, capsys)
    meant = [each for each in found if each["check"] == check and subject in each["subject"]]
    assert meant, found
    assert fix in meant[0]["fix"]
    assert code == int(any(each["severity"] == "error" for each in found))


def test_nothing_is_found_where_all_is_well(
    installation: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diagnose(installation, capsys) == (0, [])
    code = kubectl.main(["doctor", "--kubeconfig", str(installation.kubeconfig)])
    assert (code, capsys.readouterr().out) == (0, "all is well: 18 checks\n")


def test_pods_that_run_as_the_ledger_says_are_no_finding(
    installation: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    sharing_pod(installation, "a", "node-a", phase="Running")
    uid = installation.client.get(PODS, "a", namespace="default")["metadata"]["uid"]
    held = claim("a", "node-a")
    held["pod"]["uid"] = uid
    installation.write("node-a", claims=[held])
    assert diagnose(installation, capsys) == (0, [])


def test_a_fault_that_only_one_of_two_looks_sees_is_not_told(
    installation: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpuslice.cli.doctor import checks
    from gpuslice.cli.doctor.reading import Reader

    lag_behind(installation)
    first = checks.examine(Reader(installation.client).look("default"))
    assert any(first.values())
    installation.follow("node-b")
    second = checks.examine(Reader(installation.client).look("default"))
    assert not any(checks.lasting(first, second).values())
    assert any(checks.lasting(first, first).values())


def test_what_may_not_be_stored_is_not_stored(
    installation: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    diagnose(installation, capsys)
    assert installation.client.list(PODS, namespace="default") == ()


def test_a_person_reads_problem_and_fix(
    installation: Installation,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    sell_twice(installation)
    arguments = ["doctor", "--kubeconfig", str(installation.kubeconfig), "--second-look", "0"]
    assert kubectl.main(arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "FAIL  sold-twice: node/node-b"
    assert lines[1].startswith("      another device plugin sells 1 nvidia.com/gpu there")
    assert lines[2].startswith("      fix: keep NVIDIA's device plugin off this node")
    assert lines[3] == "1 wrong, 0 to look at; 18 checks"
