# SPDX-License-Identifier: Apache-2.0
"""The product's service accounts: what they may do, and clients that are them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.harness.client import Api, Json
from tests.cluster.harness.cluster import Cluster

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A service account, and the workload whose pods use it."""

    namespace: str
    name: str

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def groups(self) -> list[str]:
        return [
            "system:serviceaccounts",
            f"system:serviceaccounts:{self.namespace}",
            "system:authenticated",
        ]


WEBHOOK = Account(namespace="gpuslice", name="gpuslice-webhook")
AGENT = Account(namespace="gpuslice-nodes", name="gpuslice-device-plugin")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Right:
    """One verb on one kind of thing."""

    resource: str
    """With group and subresource; e.g. ``gpunodes.gpuslice.dev/status``, ``pods``."""
    verb: str


def resources(api: Api) -> list[tuple[str, str]]:
    """All resources that the API server has, with subresources: group and name."""
    paths = {"/api/v1": ""} | {
        f"/apis/{version['groupVersion']}": group["name"]
        for group in api.get("/apis")["groups"]
        for version in group["versions"]
    }
    return sorted(
        {
            (group, found["name"])
            for path, group in paths.items()
            for found in api.get(path)["resources"]
        }
    )


def rights(api: Api, account: Account, *, namespace: str, name: str = "") -> set[Right]:
    """What an account may do in a namespace, or everywhere where that is empty."""
    asked = [(group, kind, verb) for group, kind in resources(api) for verb in VERBS]

    def may(question: tuple[str, str, str]) -> bool:
        group, kind, verb = question
        resource, _, subresource = kind.partition("/")
        attributes = {
            "group": group,
            "resource": resource,
            "subresource": subresource,
            "verb": verb,
            "namespace": namespace,
            "name": name,
        }
        answer = api.create(
            REVIEWS,
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {
                    "user": account.user,
                    "groups": account.groups,
                    "resourceAttributes": attributes,
                },
            },
        )
        return bool(answer["status"]["allowed"])

    with ThreadPoolExecutor(4) as pool:
        allowed = list(pool.map(may, asked))
    return {
        Right(resource=_full(group, kind), verb=verb)
        for (group, kind, verb), yes in zip(asked, allowed, strict=True)
        if yes
    }


def _full(group: str, kind: str) -> str:
    resource, slash, subresource = kind.partition("/")
    return f"{resource}.{group}{slash}{subresource}" if group else kind


def table(text: str) -> set[Right]:
    """Read lines such as ``pods: get list watch``."""
    return set(_read(text))


def _read(text: str) -> Iterator[Right]:
    for line in filter(None, map(str.strip, text.splitlines())):
        resource, verbs = line.split(": ")
        for verb in verbs.split():
            yield Right(resource=resource, verb=verb)


def client(cluster: Cluster, account: Account, *, pod: Json | None = None) -> Api:
    """A client that is an account, by a token such as kubelet gets for its pod.

    Args:
        cluster: where.
        account: who.
        pod: the token's pod, which also names its node; none for a token of nobody's pod.
    """
    spec: dict[str, Any] = {"expirationSeconds": 600}
    if pod is not None:
        metadata = pod["metadata"]
        reference = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"]}
        spec["boundObjectRef"] = {**reference, "uid": metadata["uid"]}
    path = f"/api/v1/namespaces/{account.namespace}/serviceaccounts/{account.name}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    token = cluster.api.create(path, request)["status"]["token"]
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    with tempfile.NamedTemporaryFile("w", suffix=".kubeconfig") as file:
        file.write(json.dumps(config))
        file.flush()
        return Api(Path(file.name))


def agent_pod(cluster: Cluster, node: str) -> Json:
    """The device plugin's pod on a node."""
    pods = cluster.api.items(
        f"/api/v1/namespaces/{AGENT.namespace}/pods",
        labels="app.kubernetes.io/component=device-plugin",
    )
    [found] = [pod for pod in pods if pod["spec"].get("nodeName") == node]
    return found
