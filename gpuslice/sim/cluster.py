# SPDX-License-Identifier: Apache-2.0
"""An embedded cluster: a small Kubernetes around the product's real processes.

The API server, the scheduler and the kubelets are threads of this process and talk over HTTPS,
watches and gRPC. The webhook and the device plugins are the product: processes with their
ordinary flags. Everything listens on loopback.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Self

import yaml

from gpuslice.runtime import settings
from gpuslice.runtime.kube import config, resources
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import NotFoundError
from gpuslice.runtime.kube.resources import Resource
from gpuslice.sim.apiserver.server import ApiServer
from gpuslice.sim.hosts import Ground, Host
from gpuslice.sim.nvml.driver_root import build_library
from gpuslice.sim.observation import Observation
from gpuslice.sim.processes import Processes
from gpuslice.sim.replicas import LOOPBACK, READY_SECONDS, Replicas
from gpuslice.sim.scheduler.scheduler import Scheduler

Json = Mapping[str, Any]

WEBHOOK_USER: Final = "system:serviceaccount:gpuslice:gpuslice-webhook"
SCHEDULER_USER: Final = "system:kube-scheduler"
DEPLOYED: Final = ("crds", "webhook-configuration.yaml")
"""What of the folder deploy/ is applied, unchanged."""

_KINDS: Final = {
    each.kind: each
    for each in (
        resources.NAMESPACES,
        resources.CUSTOM_RESOURCE_DEFINITIONS,
        resources.MUTATING_WEBHOOKS,
        resources.VALIDATING_WEBHOOKS,
    )
}


class ClusterError(RuntimeError):
    """The embedded cluster couldn't be brought up, or a part of it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a cluster is brought up."""

    deploy: Path
    """The folder deploy/ of the project."""
    library_cache: Path
    """Where the built libnvidia-ml.so.1 is kept."""
    settings_file: Path | None = None
    webhooks: int = 1
    """Replicas."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the processes' own."""
    deployed: Sequence[str] = DEPLOYED
    seed: int = 7
    """For all that a real cluster leaves to chance."""


class Cluster:
    """One embedded cluster."""

    def __init__(self, plan: Plan) -> None:
        """Prepare a cluster; nothing runs yet."""
        self._plan = plan
        self.settings = settings.load(plan.settings_file)
        # Sockets below it must stay short, whatever TMPDIR is.
        self.folder = Path(tempfile.mkdtemp(prefix="gpuslice-", dir="/tmp"))
        self.logs = self.folder / "logs"
        self.logs.mkdir()
        self.server = ApiServer(LOOPBACK, resolve_service=self._resolve)
        self.processes = Processes(self.logs, plan.environment)
        self.hosts: dict[str, Host] = {}
        self.webhooks: Replicas
        self._clients: list[KubeClient] = []
        self._scheduler: Scheduler | None = None
        self._rng = Random(plan.seed)  # noqa: S311  chance, not secrets
        self.client: KubeClient
        self.kubeconfig = self.folder / "kubeconfig"

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop(keep_logs=True)
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Bring up everything but nodes."""
        self.server.start()
        self.server.kubeconfig(self.kubeconfig)
        self.client = self._client("system:admin", "embedded-cluster")
        for name in ("gpuslice", "gpuslice-nodes"):
            namespace = {"metadata": {"name": name}}
            self.client.create(resources.NAMESPACES, namespace)
        for name in self._plan.deployed:
            self._deploy(self._plan.deploy / name)
        scheduler = self._client(SCHEDULER_USER, "scheduler")
        self._scheduler = Scheduler(
            scheduler,
            rng=Random(self._rng.random()),  # noqa: S311  ties, not secrets
        ).start()
        self._start_webhooks()
        return self

    def _client(self, user: str, component: str) -> KubeClient:
        file = self.server.kubeconfig(self.folder / f"{component}.kubeconfig", user=user)
        client = KubeClient(config.load(file), component=component)
        self._clients.append(client)
        return client

    def _deploy(self, path: Path) -> None:
        files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        if not files or not all(file.exists() for file in files):
            raise ClusterError(
                f"{path} is missing: the embedded cluster needs the project's deploy/ folder, so "
                "run it from a checkout"
            )
        for file in files:
            for body in yaml.safe_load_all(file.read_text(encoding="utf-8")):
                self.client.create(_KINDS[body["kind"]], body)

    # --- the webhook

    def _settings_arguments(self) -> tuple[str, ...]:
        file = self._plan.settings_file
        return () if file is None else ("--settings", str(file))

    def _start_webhooks(self) -> None:
        file = self.server.kubeconfig(self.folder / "webhook.kubeconfig", user=WEBHOOK_USER)
        self.webhooks = Replicas(self.processes, file, self._settings_arguments())
        self.webhooks.start(self._plan.webhooks)
        self.webhooks.wait_until(self._is_trusted)

    def _resolve(self, namespace: str, name: str, port: int) -> tuple[str, int]:
        """Find the service of the webhook."""
        return self.webhooks.resolve(namespace, name, port)

    def _is_trusted(self) -> bool:
        """Whether the webhook has written its authority into its configuration."""
        for found in self.client.list(resources.MUTATING_WEBHOOKS):
            for webhook in found["webhooks"]:
                if not webhook["clientConfig"].get("caBundle"):
                    return False
        return True

    # --- nodes

    def add_node(self, name: str, gpus: int = 1) -> Host:
        """Let a node join, and wait until it offers its GPUs' slices."""
        ground = Ground(
            folder=self.folder,
            server=self.server,
            processes=self.processes,
            library=build_library(self._plan.library_cache),
            slice_resource=self.settings.resource_name,
            plugin_arguments=self._settings_arguments(),
            rng=self._rng,
        )
        host = Host(name, gpus, ground)
        self.hosts[name] = host
        host.start()
        host.plugin.wait_until(lambda: self._offers(name), seconds=READY_SECONDS)
        return host

    def _offers(self, name: str) -> bool:
        try:
            node = self.client.get(resources.NODES, name)
            gpu_node = self.client.get(resources.GPU_NODES, name)
        except NotFoundError:
            return False
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        serving = (gpu_node.get("status") or {}).get("serving")
        return bool(serving) and allocatable.get(self.settings.resource_name, "0") != "0"

    def remove_node(self, name: str) -> None:
        """Take a node away: its processes, then its objects."""
        host = self.hosts.pop(name)
        self.processes.stop(host.plugin)
        host.stop()
        _delete(self.client, resources.NODES, name)
        _delete(self.client, resources.GPU_NODES, name)

    # --- what happens in it

    def create_pod(self, body: Json) -> Json:
        """Create a pod in the namespace default."""
        return self.client.create(resources.PODS, body, namespace="default")

    def delete_pod(self, name: str) -> None:
        """Delete a pod of the namespace default."""
        _delete(self.client, resources.PODS, name, namespace="default")

    def finish_pod(self, name: str) -> None:
        """Let a pod's programs come to their end."""
        pod = self.client.get(resources.PODS, name, namespace="default")
        self.hosts[pod["spec"]["nodeName"]].kubelet.finish(pod["metadata"]["uid"])

    def observe(self) -> Observation:
        """Return what is true now."""
        hosts = tuple(self.hosts.values())
        return Observation(
            gpus=tuple(gpu for host in hosts for gpu in host.real_gpus()),
            pods=self.client.list(resources.PODS, namespace="default"),
            hand_outs=tuple(each for host in hosts for each in host.hand_outs()),
            gpu_nodes=self.client.list(resources.GPU_NODES),
        )

    def check(self) -> None:
        """Look whether all parts still live.

        Raises:
            ClusterError: naming the part that doesn't, and the end of its log.
        """
        for child in self.processes.ended():
            raise ClusterError(f"{child.name} ended with {child.exit_code}{child.last_words()}")
        for host in self.hosts.values():
            if host.kubelet.panic is not None:
                raise ClusterError(f"the kubelet of {host.name} crashed: {host.kubelet.panic}")

    def stop(self, *, keep_logs: bool = False) -> None:
        """End everything, and remove its files.

        Args:
            keep_logs: leave the folder `logs` where it is.
        """
        self.processes.close()
        for host in self.hosts.values():
            host.stop()
        if self._scheduler is not None:
            self._scheduler.stop()
        for client in self._clients:
            client.close()
        self.server.stop()
        for each in self.folder.iterdir() if self.folder.exists() else ():
            if keep_logs and each == self.logs:
                continue
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        if not keep_logs:
            shutil.rmtree(self.folder, ignore_errors=True)


def _delete(client: KubeClient, resource: Resource, name: str, *, namespace: str = "") -> None:
    with contextlib.suppress(NotFoundError):
        client.delete(resource, name, namespace=namespace)
