# SPDX-License-Identifier: Apache-2.0
"""Binds by hand, and a cluster whose scheduler holds still, or whose binds never arrive."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.harness.client import ApiError, Json, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.waiting import wait_until

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
REFUSAL = "this bind never arrives"


@contextmanager
def scheduler_still(cluster: Cluster) -> Iterator[None]:
    """Let the stock scheduler do nothing for a while."""
    scheduler = cluster.control_plane.scheduler
    scheduler.send(signal.SIGSTOP)
    try:
        yield
    finally:
        scheduler.send(signal.SIGCONT)


def binding(pod: Json, node: str, *, says_uid: bool = True) -> Json:
    metadata = {key: pod["metadata"][key] for key in ("name", "namespace")}
    if says_uid:
        metadata["uid"] = pod["metadata"]["uid"]
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def bind(
    cluster: Cluster,
    pod: Json,
    node: str,
    *,
    says_uid: bool = True,
    by_bindings: bool = False,
    dry_run: bool = False,
) -> None:
    """Bind a pod as a scheduler or a person does.

    Args:
        cluster: where.
        pod: what.
        node: to which node.
        says_uid: whether the Binding names the pod's uid; schedulers do.
        by_bindings: by the old `bindings` endpoint, not the pod's subresource.
        dry_run: don't.

    Raises:
        ApiError: it is refused.
    """
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    path = f"{pod_path(name, namespace)}/binding"
    if by_bindings:
        path = f"/api/v1/namespaces/{namespace}/bindings"
    query = "?dryRun=All" if dry_run else ""
    cluster.api.create(f"{path}{query}", binding(pod, node, says_uid=says_uid))


@contextmanager
def lost_binds(cluster: Cluster, namespace: str, node: str, probe: Json) -> Iterator[None]:
    """Refuse all binds of a namespace to a node, after the arbiter has granted them.

    Args:
        cluster: where.
        namespace: whose pods.
        node: to which node.
        probe: an unbound pod of that namespace, to see when it holds.
    """
    name = f"lost-binds-{namespace}"
    about = {"name": name}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["pods/binding"],
        "operations": ["CREATE"],
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    spec: dict[str, Any] = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": selector},
        "validations": [{"expression": f"object.target.name != '{node}'", "message": REFUSAL}],
    }
    api = "admissionregistration.k8s.io/v1"
    policy = {"kind": "ValidatingAdmissionPolicy", "metadata": about, "spec": spec}
    use = {
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": about,
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    cluster.api.create(POLICIES, {"apiVersion": api, **policy})
    cluster.api.create(f"{POLICIES.removesuffix('ies')}ybindings", {"apiVersion": api, **use})
    try:
        wait_until("binds are lost", lambda: _is_lost(cluster, probe, node))
        yield
    finally:
        cluster.api.delete(f"{POLICIES.removesuffix('ies')}ybindings/{name}")
        cluster.api.delete(f"{POLICIES}/{name}")


def _is_lost(cluster: Cluster, probe: Json, node: str) -> bool:
    try:
        bind(cluster, probe, node, dry_run=True)
    except ApiError as err:
        return REFUSAL in err.message
    return False
