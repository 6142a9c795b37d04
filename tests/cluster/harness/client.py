# SPDX-License-Identifier: Apache-2.0
"""The tests' own window on the API server: JSON in, JSON out, nothing of the product's."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import urllib3

from .waiting import wait_until

Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class ApiError(Exception):
    """The API server refused: `status` is HTTP's, `message` what kubectl would print."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class UnreachableError(Exception):
    """The API server didn't answer."""


def pod_path(name: str = "", namespace: str = "default") -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}".rstrip("/")


def node_path(name: str = "") -> str:
    return f"/api/v1/nodes/{name}".rstrip("/")


class Api:
    """A client with one user's certificate, or token, from a kubeconfig that holds it inline."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        user = config["users"][0]["user"]
        self._server = str(cluster["server"])
        context = ssl.create_default_context(
            cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
        )
        self._headers = {"Accept": "application/json"}
        if "token" in user:
            self._headers["Authorization"] = f"Bearer {user['token']}"
        else:
            with tempfile.NamedTemporaryFile() as file:  # ssl reads certificates from files only
                for part in ("client-certificate-data", "client-key-data"):
                    file.write(base64.b64decode(user[part]))
                file.flush()
                context.load_cert_chain(file.name)
        self._pool = urllib3.PoolManager(
            ssl_context=context, retries=False, timeout=urllib3.Timeout(connect=5, read=30)
        )

    def close(self) -> None:
        self._pool.clear()

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """Send one request and return the answer's object.

        Raises:
            ApiError: the answer is a failure.
            UnreachableError: there is no answer.
        """
        answer = self._send(method, path, body, content_type=content_type, query=query)
        decoded: Json = json.loads(answer)
        return decoded

    def _send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> bytes:
        try:
            response = self._pool.request(
                method,
                self._server + path,
                fields=query if body is None else None,
                body=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": content_type, **self._headers},
            )
        except urllib3.exceptions.HTTPError as err:
            raise UnreachableError(str(err)) from err
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise ApiError(response.status, _message(response.data))
        return response.data

    def get(self, path: str) -> Json:
        return self.request("GET", path)

    def find(self, path: str) -> Json | None:
        """The object, or None where there is none."""
        try:
            return self.get(path)
        except ApiError as err:
            if err.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def text(self, path: str) -> str:
        """What isn't JSON: logs, metrics, health."""
        return self._send("GET", path).decode(errors="replace")

    def items(self, path: str, *, labels: str = "") -> list[Json]:
        """The objects of a list."""
        query = {"labelSelector": labels} if labels else None
        found: list[Json] = self.request("GET", path, query=query)["items"]
        return found

    def create(self, path: str, body: Json) -> Json:
        return self.request("POST", path, body)

    def replace(self, path: str, body: Json) -> Json:
        return self.request("PUT", path, body)

    def patch(self, path: str, body: object, *, content_type: str = MERGE_PATCH) -> Json:
        return self.request("PATCH", path, body, content_type=content_type)

    def delete(self, path: str, *, grace_seconds: int | None = None) -> Json:
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        return self.request(
            "DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        )

    def wait(
        self,
        what: str,
        path: str,
        holds: Callable[[Json], object],
        *,
        timeout_seconds: float = 60,
    ) -> Json:
        """Wait until an object is there and something holds of it; outages are waited out."""
        last: list[object] = ["nothing"]

        def look() -> Json | None:
            try:
                last[0] = found = self.find(path)
            except (UnreachableError, ApiError) as err:
                last[0] = err
                return None
            return found if found is not None and holds(found) else None

        def seen() -> object:
            return last[0].get("status", last[0]) if isinstance(last[0], dict) else last[0]

        found = wait_until(what, look, timeout_seconds=timeout_seconds, seen=seen)
        assert found is not None
        return found

    def wait_gone(self, path: str, *, timeout_seconds: float = 60) -> None:
        wait_until(
            f"{path} is gone", lambda: self.find(path) is None, timeout_seconds=timeout_seconds
        )

    def is_ready(self) -> bool:
        try:
            return self.text("/readyz") == "ok"
        except (UnreachableError, ApiError):
            return False


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data.decode(errors="replace")


def condition(obj: Json, kind: str) -> bool:
    """Whether a condition in an object's status is True, e.g. `Ready`."""
    conditions = obj.get("status", {}).get("conditions", [])
    return any(item["type"] == kind and item["status"] == "True" for item in conditions)
