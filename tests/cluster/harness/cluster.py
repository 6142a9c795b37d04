# SPDX-License-Identifier: Apache-2.0
"""A whole cluster: up, in use, down without a trace."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from . import deployment, keeper, network, prerequisites, product_image, relay
from .build import DEFAULT_KUBE_VERSION, binaries
from .client import Api, Json, condition, node_path
from .controlplane import ControlPlane
from .deployment import Difference
from .errors import HarnessError, TimedOutError
from .gpus import NodeGpus, NodePlan, plan
from .images import ImageStore, add_busybox_images
from .namespaces import environment, tail
from .node import Node, Surroundings
from .paths import cache_dir, run_folder
from .pki import Authority
from .waiting import wait_until

ADMIN = "gpuslice-admin"
THREE_NODES = tuple(plan(f"node-{letter}") for letter in "abc")


def _is_shunned(node: Json) -> bool:
    """Whether the node lifecycle controller keeps pods from a node; a cordon doesn't count."""
    taints = node["spec"].get("taints", [])
    return any(taint["key"] == "node.kubernetes.io/not-ready" for taint in taints)


class Cluster:
    """A real Kubernetes in namespaces of its own, as long as this object's process holds it.

    Use it as a context manager, or call `up` and `down`; if the process dies, all is taken down.
    """

    def __init__(
        self,
        plans: Sequence[NodePlan] = THREE_NODES,
        *,
        name: str = "",
        kube_version: str = DEFAULT_KUBE_VERSION,
        keep_logs: Path | None = None,
    ) -> None:
        """Prepare a cluster; nothing is started yet.

        Args:
            plans: its nodes and their GPUs.
            name: of its folder; a random one where none is given.
            kube_version: one of those in tests/cluster/go/kubernetes.
            keep_logs: a folder that gets all programs' logs when it goes down.
        """
        self.name = name or secrets.token_hex(4)
        self.run = run_folder(self.name)
        self.kubeconfig = self.run / "kubeconfig"
        self.kube_version = kube_version
        self.nodes: dict[str, Node] = {}
        self.up_seconds = 0.0
        self._plans = tuple(plans)
        self._keep_logs = keep_logs
        self._keeper: subprocess.Popen[str] | None = None
        self._control_plane: ControlPlane | None = None
        self._relay: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def up(self) -> float:
        """Start everything and wait until all nodes are ready.

        Returns:
            The seconds it took, without the building of binaries and images.

        Raises:
            MissingError: the machine lacks something; one line for each thing.
            HarnessError: something didn't start; with the last lines of its log.
        """
        prerequisites.require()
        self._binaries = binaries(self.kube_version)
        started = time.monotonic()
        self._keeper, self.namespaces = keeper.start(self.name)
        try:
            self._start()
        except BaseException:
            self.down()
            raise
        self.up_seconds = time.monotonic() - started
        return self.up_seconds

    def _start(self) -> None:
        (self.run / "logs").mkdir()
        self.images = ImageStore(blobs=cache_dir() / "blobs", names=self.run / "images")
        add_busybox_images(self.images)
        self._authority = Authority(self.run / "pki")
        self.server = f"https://127.0.0.1:{self._start_relay()}"
        self._authority.kubeconfig(
            self.kubeconfig, server=self.server, user=ADMIN, organization="system:masters"
        )
        self._control_plane = ControlPlane(
            self.run,
            self._binaries,
            self._authority,
            self.namespaces,
            self.images,
            proxied_node=self._plans[0].name,
        )
        self.api = Api(self.kubeconfig)
        self.control_plane.start_etcd()
        self.control_plane.start_registry()
        self.start_apiserver()
        self.control_plane.start_controllers()
        for node_plan in self._plans:
            self._add(node_plan)
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Node.start, self.nodes.values()))
        self.wait_ready()

    def _add(self, node_plan: NodePlan) -> Node:
        node = Node(
            node_plan.name,
            len(self.nodes),
            NodeGpus(node_plan.gpus, self.run / "nodes" / node_plan.name / "driver"),
            Surroundings(
                run=self.run,
                binaries=self._binaries,
                authority=self._authority,
                namespaces=self.namespaces,
            ),
        )
        self.nodes[node.name] = node
        return node

    @property
    def control_plane(self) -> ControlPlane:
        assert self._control_plane is not None, "the cluster is not up"
        return self._control_plane

    def add_node(self, node_plan: NodePlan) -> Node:
        """Add a node to a running cluster, and wait until it is ready."""
        if node_plan.name in self.nodes:
            raise HarnessError(f"there is a node {node_plan.name} already")
        node = self._add(node_plan)
        node.start()
        self.wait_ready(node.name)
        return node

    def _start_relay(self) -> int:
        """A loopback port of the machine that leads to the API server: kubectl works anywhere."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            target = (network.API_ADDRESS, str(network.API_PORT))
            self._relay = subprocess.Popen(
                (
                    *("nsenter", f"--target={self.namespaces.init_pid}", "--net", "--pid", "--"),
                    *(sys.executable, relay.__file__, str(listener.fileno()), *target),
                ),
                pass_fds=(listener.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment(),
            )
            port: int = listener.getsockname()[1]
        return port

    def start_apiserver(self, *, timeout_seconds: float = 90) -> None:
        """Start the API server, also after it was stopped, and wait until it is ready."""
        self.control_plane.start_apiserver()
        self.control_plane.apiserver.wait_until(self.api.is_ready, timeout_seconds=timeout_seconds)

    def wait_ready(self, *names: str, timeout_seconds: float = 60) -> None:
        """Wait until these nodes, or all that are on, are Ready."""
        for name in names or [node.name for node in self.nodes.values() if node.is_on()]:
            try:
                self.api.wait(
                    f"{name} is Ready",
                    node_path(name),
                    lambda node: condition(node, "Ready") and not _is_shunned(node),
                    timeout_seconds=timeout_seconds,
                )
            except TimedOutError as err:
                raise TimedOutError(f"{err}\n{self.log_tail(f'kubelet-{name}')}") from err

    def log_tail(self, program: str, lines: int = 12) -> str:
        """The last lines of a program's log, e.g. of `kubelet-node-a` or `apiserver`."""
        return tail(self.run / "logs" / f"{program}.log", lines)

    def client(self, user: str, *, organization: str | None = None) -> Api:
        """A client that is somebody else: a node, or a user with just some rights."""
        path = self.run / "pki" / f"{user.replace(':', '-')}.kubeconfig"
        self._authority.kubeconfig(path, server=self.server, user=user, organization=organization)
        return Api(path)

    def kubectl(
        self,
        *arguments: str | Path,
        stdin: str | None = None,
        check: bool = True,
        timeout_seconds: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator, on the machine.

        Raises:
            HarnessError: it failed, and `check` is set; has what it printed.
        """
        done = subprocess.run(
            (*self._binaries.kube("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_seconds,
            env=environment(),
        )
        if check and done.returncode:
            shown = " ".join(map(str, arguments))
            raise HarnessError(f"kubectl {shown}: exit {done.returncode}: {done.stderr.strip()}")
        return done

    def deploy(
        self, *extra: Difference, install: Path = deployment.INSTALL, timeout_seconds: float = 120
    ) -> None:
        """Build the product's image, apply its manifests with kubectl, and wait until they run.

        Called again it applies what has changed, as an upgrade does.

        Args:
            extra: differences of this test, after those in `deployment.DIFFERENCES`.
            install: the manifests.
            timeout_seconds: how long the workloads may take to roll out.

        Raises:
            HarnessError: something is refused, or doesn't roll out.
        """
        differences = (*deployment.DIFFERENCES, *extra)
        objects = deployment.differing(deployment.read(install), differences)
        product_image.build(self.images, tuple(deployment.images(objects)))
        self._label_gpu_nodes()
        self.apply(objects)
        for workload in deployment.workloads(objects):
            self._wait_rolled_out(workload, timeout_seconds)

    def _wait_rolled_out(self, workload: Json, timeout_seconds: float) -> None:
        """Wait until the pods of a Deployment or DaemonSet run; say what is wrong with them."""
        name = f"{workload['kind'].lower()}/{workload['metadata']['name']}"
        namespace = f"--namespace={workload['metadata'].get('namespace', 'default')}"
        try:
            self.kubectl(
                *("rollout", "status", name, namespace, f"--timeout={timeout_seconds:.0f}s"),
                timeout_seconds=timeout_seconds + 10,
            )
        except HarnessError as err:
            pods = self.kubectl("get", "pods", namespace, check=False).stdout
            logs = self.kubectl("logs", name, namespace, "--tail=5", check=False)
            raise HarnessError(f"{err}\n{pods}\n{logs.stdout}{logs.stderr}") from err

    def apply(self, objects: Sequence[Json]) -> None:
        """`kubectl apply`; a kind that its CRD has just brought may take a moment to be known."""
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})

        def applied() -> bool:
            done = self.kubectl("apply", "--filename=-", stdin=document, check=False)
            if done.returncode and "no matches for kind" not in done.stderr:
                raise HarnessError(f"kubectl apply: {done.stderr.strip()}")
            return done.returncode == 0

        wait_until("the manifests apply", applied, timeout_seconds=30)

    def _label_gpu_nodes(self) -> None:
        for node in self.nodes.values():
            value = "true" if node.gpus.count else None
            labels = {"metadata": {"labels": {deployment.GPU_NODE_LABEL: value}}}
            self.api.patch(node_path(node.name), labels)

    def down(self) -> float:
        """Take everything down; nothing of it is left on the machine.

        Returns:
            The seconds it took; 0 if it was not up.
        """
        if self._keeper is None:
            return 0
        started = time.monotonic()
        self._copy_logs()
        self._keeper.communicate()  # closes its standard input, which is the order to end
        self._keeper = None
        if self._relay is not None:
            self._relay.wait(timeout=10)
        for node in self.nodes.values():
            node.end()
        for program in self._control_plane.programs if self._control_plane else ():
            program.kill()
        return time.monotonic() - started

    def _copy_logs(self) -> None:
        logs = self.run / "logs"
        if self._keep_logs is not None and logs.exists():
            shutil.copytree(logs, self._keep_logs, dirs_exist_ok=True)
