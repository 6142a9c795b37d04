# SPDX-License-Identifier: Apache-2.0
"""A real webhook over HTTPS whose answers a test decides, and the objects that configure it."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from gpuslice.sim.apiserver.certificates import Certificate, self_signed

Json = dict[str, Any]
Answers = Callable[[Json], Json]
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations"
VALIDATING = f"{ADMISSION}/validatingwebhookconfigurations"
POD_RULE = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["pods"],
    "operations": ["CREATE"],
    "scope": "Namespaced",
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        hook = cast("ToyHook", self.server)
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        hook.reviews.append(review)
        hook.paths.append(self.path)
        hook.clients.add(self.client_address)
        answer = hook.answers(review["request"])
        code, extra = answer.pop("http", 200), answer.pop("header", "")
        text = json.dumps(answer.pop("raw", answer)).encode()
        head = f"HTTP/1.1 {code} OK\r\nContent-Length: {len(text)}\r\n{extra}\r\n"
        try:
            self.wfile.write(head.encode() + text)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


class ToyHook(ThreadingHTTPServer):
    """Serves on loopback and keeps every review."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.certificate: Certificate = self_signed(["127.0.0.1", "hook.system.svc"])
        self.socket = self.certificate.server_context().wrap_socket(self.socket, server_side=True)
        self.reviews: list[Json] = []
        self.paths: list[str] = []
        self.clients: set[Any] = set()
        self.answers: Answers = allow
        self.ending = threading.Event()
        """Set at the end: what waits in an answer stops waiting."""
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, *_: Any) -> None:
        pass

    @property
    def requests(self) -> list[Json]:
        return [review["request"] for review in self.reviews]

    @property
    def client(self) -> Json:
        return {"url": f"https://127.0.0.1:{self.server_address[1]}/admit", **self.bundle}

    @property
    def bundle(self) -> Json:
        return {"caBundle": base64.b64encode(self.certificate.certificate).decode()}

    def entry(self, name: str = "one.hook.dev", **fields: Any) -> Json:
        return {
            "name": name,
            "clientConfig": self.client,
            "rules": [POD_RULE],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            **fields,
        }

    def stop(self) -> None:
        self.ending.set()
        with contextlib.suppress(OSError):  # wakes the loop; may be stopped already
            self.socket.shutdown(socket.SHUT_RDWR)
        self.shutdown()
        self.server_close()


def configuration(*entries: Json, name: str = "hooks", is_mutating: bool = True) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{'Mutating' if is_mutating else 'Validating'}WebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": list(entries),
    }


def answer(request: Json, **response: Any) -> Json:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": request["uid"], "allowed": True, **response},
    }


def allow(request: Json) -> Json:
    return answer(request)


def deny(message: str, code: int = 422) -> Answers:
    return lambda request: answer(
        request, allowed=False, status={"message": message, "code": code, "reason": "Invalid"}
    )


def patch(*operations: Json) -> Answers:
    encoded = base64.b64encode(json.dumps(operations).encode()).decode()
    return lambda request: answer(request, patch=encoded, patchType="JSONPatch")


def annotate(**annotations: str) -> Answers:
    """Answer with a patch that adds annotations, and none when they are there already."""

    def answers(request: Json) -> Json:
        there = request["object"]["metadata"].get("annotations")
        if (there or {}).items() >= annotations.items():
            return allow(request)
        value = {**(there or {}), **annotations}
        return patch({"op": "add", "path": "/metadata/annotations", "value": value})(request)

    return answers
