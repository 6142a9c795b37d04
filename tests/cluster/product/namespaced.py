# SPDX-License-Identifier: Apache-2.0
"""A namespace for one test, with nothing left of it afterwards: not even a claim."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.harness.client import pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.waiting import wait_until
from tests.cluster.product.witness import Witness, wait_no_claims

NAMESPACES = "/api/v1/namespaces"


@contextmanager
def namespace(cluster: Cluster, test: str) -> Iterator[str]:
    """Make a namespace; check the invariants and take it away at the end."""
    made = create(cluster, test)
    try:
        yield made
        Witness(cluster).check()
    finally:
        empty(cluster, made)
        cluster.api.delete(f"{NAMESPACES}/{made}")
    wait_no_claims(cluster, made)


def create(cluster: Cluster, test: str) -> str:
    """Make a namespace named after a test; pods can be made in it at once."""
    words = re.sub(r"[^a-z0-9]+", "-", test.lower().removeprefix("test_")).strip("-")
    name = f"{words[:40].strip('-')}-{secrets.token_hex(2)}"
    cluster.api.create(
        NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    account = f"{NAMESPACES}/{name}/serviceaccounts/default"
    wait_until("it has its service account", lambda: cluster.api.find(account) is not None)
    return name


def empty(cluster: Cluster, namespace: str) -> None:
    """Delete a namespace's workloads and pods, and wait until kubelets have let the pods go."""
    kinds = "deployments,statefulsets,daemonsets,replicasets,jobs,pods"
    cluster.kubectl("delete", kinds, "--all", f"--namespace={namespace}", "--wait=false", "--now")
    wait_until(
        f"{namespace} has no pods",
        lambda: not cluster.api.items(pod_path(namespace=namespace)),
        seen=lambda: [p["metadata"]["name"] for p in cluster.api.items(pod_path("", namespace))],
    )
