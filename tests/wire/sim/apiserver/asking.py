# SPDX-License-Identifier: Apache-2.0
"""A client of the embedded API server, and the objects that tests send."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SHARES = "/apis/example.com/v1/shares"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

Json = dict[str, Any]


class Said:
    """One answer."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.code = response.status
        self.warnings = response.headers.get_all("Warning") or []
        text = response.read()
        self.text = text.decode()
        self.body: Json = json.loads(text) if text[:1] == b"{" else {}

    @property
    def version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def why(self) -> tuple[int, str]:
        return self.code, self.body.get("reason", "")


class Client:
    """Sends requests over one kept-alive connection."""

    def __init__(self, url: str, ca_pem: bytes, user: str = "") -> None:
        self.parts = urlsplit(url)
        self.context = ssl.create_default_context(cadata=ca_pem.decode()) if ca_pem else None
        self.headers = {"Authorization": f"Bearer {user}"} if user else {}
        self.connection = self.connect()

    def connect(self) -> http.client.HTTPConnection:
        host, port = self.parts.hostname or "", self.parts.port
        if self.context is None:
            return http.client.HTTPConnection(host, port, timeout=10)
        return http.client.HTTPSConnection(host, port, timeout=10, context=self.context)

    def send(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Said:
        text = body if isinstance(body, bytes | None) else json.dumps(body)
        headers = {**self.headers, "Content-Type": content_type}
        self.connection.request(method, path, text, headers)
        return Said(self.connection.getresponse())

    def get(self, path: str) -> Said:
        return self.send("GET", path)

    def post(self, path: str, body: Any) -> Said:
        return self.send("POST", path, body)

    def put(self, path: str, body: Any) -> Said:
        return self.send("PUT", path, body)

    def patch(self, path: str, body: Any, content_type: str = MERGE) -> Said:
        return self.send("PATCH", path, body, content_type)

    def delete(self, path: str, body: Any = None) -> Said:
        return self.send("DELETE", path, body)

    def names(self, path: str) -> list[str]:
        return [item["metadata"]["name"] for item in self.get(path).body["items"]]

    def watch(self, path: str) -> Iterator[Json]:
        """Yield a watch's events until the server ends it."""
        connection = self.connect()
        try:
            connection.request("GET", path, headers=self.headers)
            response = connection.getresponse()
            while line := response.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def close(self) -> None:
        self.connection.close()


def build_pod(name: str = "p", **meta: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **meta},
        "spec": {"containers": [{"name": "main", "image": "busybox:1"}]},
    }


def build_binding(pod: str = "p", node: str = "node-a", **meta: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, **meta},
        "target": {"kind": "Node", "name": node},
    }


def build_crd(*, has_status: bool = True) -> Json:
    version: Json = {"name": "v1", "served": True, "storage": True}
    if has_status:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "shares.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"plural": "shares", "kind": "Share", "shortNames": ["sh"]},
            "versions": [version],
        },
    }


def build_share(name: str = "half", **fields: Any) -> Json:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Share",
        "metadata": {"name": name},
        "spec": {"size": 5},
        **fields,
    }
