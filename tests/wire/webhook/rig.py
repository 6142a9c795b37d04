# SPDX-License-Identifier: Apache-2.0
"""The real webhook process beside the embedded API server, and a stand-in for a node's agent."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from gpuslice.contract import fits, gpunode
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import parse_share
from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import ConflictError
from gpuslice.runtime.kube.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    GPU_NODES,
    GPU_SHARES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    VALIDATING_WEBHOOKS,
)
from gpuslice.sim.apiserver.server import ApiServer

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
NAMESPACE = "gpuslice"
DEADLINE_SECONDS = 20.0


def eventually(look: Callable[[], T], seconds: float = DEADLINE_SECONDS) -> T:
    """Return what a look finds once it is true; another process gives no event to wait on."""
    until = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        try:
            found = look()
        except (OSError, http.client.HTTPException):
            found = None  # type: ignore[assignment]  # falsy, whatever T is
        if found:
            return found
        assert time.monotonic() < until, "it never came true"
        pause.wait(0.02)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def build_pod(
    name: str, annotations: Mapping[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
        "spec": {"containers": [{"name": "train", "image": "ubuntu"}], **spec},
    }


class Cluster:
    """An API server with our kinds, and our webhook configurations where `hooked`."""

    def __init__(self, *, hooked: bool = True) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gs-"))
        self.webhook_ports: list[int] = []
        self.replicas: list[Webhook] = []
        self.server = ApiServer(resolve_service=self._resolve).start()
        self.kubeconfig = Path(self.server.kubeconfig(self.folder / "kubeconfig"))
        self.client = KubeClient(config.load(self.kubeconfig), component="tests")
        for name in ("gpunodes", "gpushares"):
            text = (ROOT / "deploy" / "crds" / f"{name}.yaml").read_text(encoding="utf-8")
            self.client.create(CUSTOM_RESOURCE_DEFINITIONS, yaml.safe_load(text))
        self.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        if hooked:
            self.hook()
        self._agents: list[Agent] = []

    def hook(self) -> None:
        text = (ROOT / "deploy" / "webhook-configuration.yaml").read_text(encoding="utf-8")
        mutating, validating = yaml.safe_load_all(text)
        self.client.create(MUTATING_WEBHOOKS, mutating)
        self.client.create(VALIDATING_WEBHOOKS, validating)

    def _resolve(self, _namespace: str, _name: str, _port: int) -> tuple[str, int]:
        return "127.0.0.1", self.webhook_ports[0]

    def is_trusting(self) -> bool:
        found = self.client.list(MUTATING_WEBHOOKS) + self.client.list(VALIDATING_WEBHOOKS)
        return all(
            each["clientConfig"].get("caBundle") for one in found for each in one["webhooks"]
        )

    def add_node(self, name: str, gpus: int = 1, memory_mib: int = 23034) -> Agent:
        """Make a Node with GPUs, and start the stand-in for its agent."""
        status = {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}}
        self.client.create(NODES, {"metadata": {"name": name}, "status": status})
        items = [
            {
                "uuid": f"GPU-{name}-{index}",
                "index": index,
                "memoryMiB": memory_mib,
                "slices": 100,
                "healthy": True,
            }
            for index in range(gpus)
        ]
        spec = {"mode": "time-slicing", "sliceBy": "fraction", "gpus": items}
        made = self.client.create(GPU_NODES, {"metadata": {"name": name}, "spec": spec})
        self.client.replace(
            GPU_NODES, {**made, "status": {"serving": True, "claims": []}}, status=True
        )
        agent = Agent(self.client, name)
        self._agents.append(agent)
        return agent

    def claims(self, node: str) -> list[Mapping[str, Any]]:
        return list(self.client.get(GPU_NODES, node)["status"].get("claims") or ())

    def create_pod(self, name: str, annotations: Mapping[str, str], **spec: Any) -> dict[str, Any]:
        return self.client.create(PODS, build_pod(name, annotations, **spec))

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()
        for agent in self._agents:
            agent.stop()
        self.client.close()
        self.server.stop()
        shutil.rmtree(self.folder)


class Agent:
    """Shows on its Node, as an agent does, the fits of each version of its ledger."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self._node = node
        self._stopping = threading.Event()
        self.silent = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def change(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the ledger's status, by compare-and-swap."""
        while True:
            thing = self._client.get(GPU_NODES, self._node)
            change(thing["status"])
            try:
                self._client.replace(GPU_NODES, thing, status=True)
            except ConflictError:
                continue
            return

    def _run(self) -> None:
        shown = ""
        while not self._stopping.wait(0.01):
            thing = self._client.get(GPU_NODES, self._node)
            listed = self._client.list(GPU_SHARES)
            version = thing["metadata"]["resourceVersion"]
            state = f"{version} {sorted(each['metadata']['name'] for each in listed)}"
            if self.silent.is_set() or state == shown:
                continue
            ledger = gpunode.ledger_of(thing)
            demands = [
                Demand(share=parse_share(each["spec"]["share"]), slices=each["spec"]["slices"])
                for each in listed
            ]
            values = {key: str(value) for key, value in fits.fits(ledger, demands).items()}
            patch = {
                "metadata": {"annotations": {"gpuslice.dev/ledger": version}},
                "status": {"capacity": values, "allocatable": values},
            }
            self._client.patch(NODES, self._node, patch, status=True)
            shown = state

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5)


class Webhook:
    """One replica: a real process."""

    def __init__(self, cluster: Cluster, *sets: str, kubeconfig: Path | None = None) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.log_path = cluster.folder / f"webhook-{self.port}.log"
        cluster.webhook_ports.append(self.port)
        cluster.replicas.append(self)
        chosen = [f"webhook.namespace={NAMESPACE}", *sets]
        if not any(each.startswith("webhook.drainSeconds") for each in sets):
            chosen.append("webhook.drainSeconds=0")
        flags: Sequence[str] = [
            *("--kubeconfig", str(kubeconfig or cluster.kubeconfig), "--host", "127.0.0.1"),
            *("--port", str(self.port), "--metrics-port", str(self.metrics_port)),
            *(part for each in chosen for part in ("--set", each)),
        ]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "webhook", *flags], cwd=ROOT, stderr=log, stdout=log
            )

    def wait_ready(self) -> Self:
        eventually(lambda: self.status("/readyz")[0] == 200)
        return self

    def status(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPSConnection:
        """Return a connection of the kind that anybody may open."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)

    def worker_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(eventually(lambda: children.read_text().split())[0])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(5)


def post(
    connection: http.client.HTTPSConnection, path: str, body: bytes
) -> http.client.HTTPResponse:
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    return connection.getresponse()


def review_of(pod: Mapping[str, Any], **request: Any) -> bytes:
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "operation": "CREATE",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "namespace": "default",
            "object": pod,
            **request,
        },
    }
    return json.dumps(review).encode()
