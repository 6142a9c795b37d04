# SPDX-License-Identifier: Apache-2.0
"""Where a kubelet runs: a node of the real cluster, or this process."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Protocol

from gpuslice.runtime.kube.client import KubeClient
from gpuslice.sim.kubelet.kubelet import Kubelet
from gpuslice.sim.kubelet.quirks import Quirks
from gpuslice.sim.kubelet.remote import RemoteApi
from gpuslice.sim.kubelet.timings import Timings
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.node import Node
from tests.cluster.harness.waiting import wait_until

STATUS_SECONDS = 1.0
"""How often both kubelets look whether their Node's status has to be written: stock is 10."""


class Host(Protocol):
    """One kubelet's machine."""

    title: str
    node: str
    root: Path
    """Its /var/lib/kubelet, as this process sees it."""
    client: KubeClient

    def start_kubelet(self) -> None: ...
    def stop_kubelet(self, *, is_hard: bool) -> None: ...
    def power_off(self) -> None:
        """End everything that runs there; kubelet has been stopped."""


class RealHost:
    """A node of the real cluster."""

    title = "real"

    def __init__(self, cluster: Cluster, node: Node, client: KubeClient) -> None:
        self.node = node.name
        self.client = client
        self.root = cluster.run / "nodes" / node.name / "disk" / "lib" / "kubelet"
        self._node = node
        self._hurry()

    def _hurry(self) -> None:
        """Have kubelet write its Node's status every second."""
        path = "/etc/kubernetes/kubelet.json"
        config = json.loads(self._node.run("cat", path).stdout)
        config["nodeStatusUpdateFrequency"] = f"{STATUS_SECONDS:.0f}s"
        self._node.run("sh", "-c", 'printf %s "$1" > "$2"', "-", json.dumps(config), path)
        self.stop_kubelet(is_hard=True)
        self.start_kubelet()

    def start_kubelet(self) -> None:
        if not self._node.is_on():
            self._node.start()
        else:
            self._node.start_kubelet()
        wait_until(f"kubelet of {self.node} is up", self._is_up, timeout_seconds=120)

    def _is_up(self) -> bool:
        """Whether kubelet serves; one that gave up is started again, as by any init system.

        The machine may have run out of something for a moment, such as inotify instances.
        """
        if not self._node.kubelet.is_running():
            self._node.start_kubelet()
        return self._socket.exists()

    @property
    def _socket(self) -> Path:
        return self.root / "device-plugins" / "kubelet.sock"

    def stop_kubelet(self, *, is_hard: bool) -> None:
        if is_hard:
            self._node.kubelet.kill()
        else:
            self._node.kubelet.stop()
        # A killed one leaves its socket behind: what appears there again is the next one's, which
        # has then removed everybody else's.
        self._socket.unlink(missing_ok=True)

    def power_off(self) -> None:
        self._node.stop()


class SimHost:
    """The embedded kubelet, in this process."""

    title = "sim"

    def __init__(
        self, root: Path, node: str, client: KubeClient, *, seed: int, quirks: Quirks
    ) -> None:
        self.node = node
        self.client = client
        self.root = root
        self.kubelet = Kubelet(
            node_name=node,
            root=root,
            api=RemoteApi(client),
            rng=Random(seed),
            quirks=quirks,
            timings=Timings(status_interval_seconds=STATUS_SECONDS),
        )
        self.kubelet.start()

    def start_kubelet(self) -> None:
        self.kubelet.start()

    def stop_kubelet(self, *, is_hard: bool) -> None:
        self.kubelet.stop()

    def power_off(self) -> None:
        self.kubelet.power_off()
