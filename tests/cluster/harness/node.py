# SPDX-License-Identifier: Apache-2.0
"""One node: kubelet and containerd in namespaces of their own, on GPUs of their own."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import cgroups, network, nodeconfig
from .build import Binaries
from .errors import HarnessError
from .gpus import NodeGpus
from .namespaces import Namespaces, create
from .pki import Authority
from .prerequisites import search_path
from .processes import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a node needs of its cluster."""

    run: Path
    """The cluster's folder."""
    binaries: Binaries
    authority: Authority
    namespaces: Namespaces


class Node:
    """A machine that can be switched off and on; what is on its disk stays."""

    def __init__(self, name: str, number: int, gpus: NodeGpus, around: Surroundings) -> None:
        self.name = name
        self.gpus = gpus
        self.address = network.node_address(number)
        self._around = around
        self._folder = around.run / "nodes" / name
        self._disk = self._folder / "disk"
        self._cgroup = f"/{around.run.name}/{name}"
        self._namespaces: Namespaces | None = None
        self._prepare(number)
        logs = around.run / "logs"
        binaries = around.binaries
        self.containerd = Program(
            f"containerd-{name}",
            (binaries.containerd / "containerd",),
            log=logs / f"containerd-{name}.log",
            env={"PATH": f"{binaries.containerd}:{search_path()}", "TMPDIR": "/run"},
        )
        self.kubelet = Program(
            f"kubelet-{name}",
            (
                *binaries.kube("kubelet"),
                "--config=/etc/kubernetes/kubelet.json",
                f"--kubeconfig={self._kubeconfig}",
                f"--node-ip={self.address}",
                "-v=2",
            ),
            log=logs / f"kubelet-{name}.log",
        )

    def _prepare(self, number: int) -> None:
        """Install the machine: what is on its disk before it first boots."""
        etc = self._disk / "etc"
        for folder in ("containerd/certs.d/_default", "cni/net.d", "kubernetes"):
            (etc / folder).mkdir(parents=True, exist_ok=True)
        authority = self._around.authority
        user = f"system:node:{self.name}"
        serving = authority.issue(
            f"kubelet-{self.name}-serving", self.name, names=(self.address, self.name)
        )
        self._kubeconfig = authority.kubeconfig(
            self._folder / f"kubelet-{self.name}.kubeconfig",
            server=f"https://{network.API_ADDRESS}:{network.API_PORT}",
            user=user,
            organization="system:nodes",
        )
        for path, text in {
            "containerd/config.toml": nodeconfig.containerd_toml(),
            "containerd/certs.d/_default/hosts.toml": nodeconfig.registry_hosts(),
            "cni/net.d/10-pods.conflist": nodeconfig.cni_conflist(number),
            "kubernetes/kubelet.json": nodeconfig.kubelet_config(
                address=self.address,
                cgroup=self._cgroup,
                client_ca=authority.certificate,
                certificate=serving.certificate,
                key=serving.key,
            ),
        }.items():
            (etc / path).write_text(text)

    @property
    def namespaces(self) -> Namespaces:
        """Where its programs and containers run.

        Raises:
            HarnessError: it is switched off.
        """
        if self._namespaces is None:
            raise HarnessError(f"{self.name} is switched off")
        return self._namespaces

    def is_on(self) -> bool:
        return self._namespaces is not None

    def start(self) -> None:
        """Switch it on: boot, containerd, kubelet."""
        if self._namespaces is not None:
            raise HarnessError(f"{self.name} is on already")
        cgroups.create(self._cgroup)
        around = self._around.namespaces
        around.run("ip", "addr", "replace", f"{self.address}/24", "dev", network.LINK)
        self._namespaces = create(
            nodeconfig.boot_script(
                name=self.name,
                disk=self._disk,
                driver_root=self.gpus.driver_root,
                device_count=self.gpus.count,
            ),
            within=around,
            kinds=("--mount", "--uts"),
            log=self._around.run / "logs" / f"boot-{self.name}.log",
        )
        self.start_containerd()
        self.kubelet.start(self._namespaces)

    def start_containerd(self) -> None:
        """Start containerd alone, and wait until it answers: kubelet gives up without it."""
        self.containerd.start(self.namespaces)
        self.containerd.wait_until(self._containerd_answers, timeout_seconds=60)

    def start_kubelet(self) -> None:
        self.kubelet.start(self.namespaces)

    def _containerd_answers(self) -> bool:
        done = self.run(self._around.binaries.containerd / "ctr", "version", check=False)
        return done.returncode == 0

    def run(
        self, *command: str | Path, check: bool = True, timeout_seconds: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the node, outside of any pod, until it ends."""
        return self.namespaces.run(*command, check=check, timeout_seconds=timeout_seconds)

    def end(self) -> None:
        """End all of its processes, containers included, at once."""
        if self._namespaces is not None:
            self._namespaces.kill()
            self._namespaces = None
        for program in (self.kubelet, self.containerd):
            program.kill()  # they are gone; this collects what waited for them

    def stop(self) -> None:
        """Cut its power, and pull its cable."""
        self.end()
        self._around.namespaces.run(
            "ip", "addr", "del", f"{self.address}/24", "dev", network.LINK, check=False
        )
        cgroups.remove(self._cgroup)

    def reboot(self) -> None:
        """Cut its power and switch it on again: what isn't on its disk is lost."""
        self.stop()
        self.start()

    def restart_kubelet(self, *, hard: bool = False) -> None:
        """Stop kubelet alone and start it again; its pods run on."""
        self._end(self.kubelet, hard=hard)
        self.start_kubelet()

    def restart_containerd(self, *, hard: bool = False) -> None:
        """Stop containerd alone and start it again; its containers run on."""
        self._end(self.containerd, hard=hard)
        self.start_containerd()

    @staticmethod
    def _end(program: Program, *, hard: bool) -> None:
        if hard:
            program.kill()
        else:
            program.stop()
