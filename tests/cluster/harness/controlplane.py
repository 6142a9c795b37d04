# SPDX-License-Identifier: Apache-2.0
"""etcd, the API server and its controllers, the stock scheduler, and the nodes' one kube-proxy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from . import network, registry
from .build import Binaries
from .images import ImageStore
from .namespaces import Namespaces
from .pki import Authority
from .processes import Program

_ETCD = "http://127.0.0.1:2379"
_ETCD_PEER = "http://127.0.0.1:2380"
_SERVER = f"https://{network.API_ADDRESS}:{network.API_PORT}"


class ControlPlane:
    """The programs that run beside the nodes, each to be stopped and started alone."""

    def __init__(
        self,
        run: Path,
        binaries: Binaries,
        authority: Authority,
        namespaces: Namespaces,
        store: ImageStore,
        *,
        proxied_node: str,
    ) -> None:
        self._run = run
        self._logs = run / "logs"
        self._binaries = binaries
        self._authority = authority
        self._namespaces = namespaces
        self._signing_key, self._signing_public = authority.service_account_keys()
        self.etcd = self._etcd()
        self.apiserver = self._apiserver()
        self.scheduler = self._scheduler()
        self.controller_manager = self._controller_manager()
        self.kube_proxy = self._kube_proxy(proxied_node)
        self.registry = self._program(
            "registry",
            (
                *(sys.executable, registry.__file__),
                *(store.blobs, store.names, str(network.REGISTRY_PORT)),
            ),
        )

    def _program(self, name: str, argv: tuple[str | Path, ...]) -> Program:
        return Program(name, argv, log=self._logs / f"{name}.log")

    def _kubeconfig(self, user: str) -> Path:
        path = self._run / f"{user}.kubeconfig"
        return self._authority.kubeconfig(path, server=_SERVER, user=f"system:{user}")

    def _etcd(self) -> Program:
        return self._program(
            "etcd",
            (
                self._binaries.etcd,
                f"--data-dir={self._run / 'etcd'}",
                f"--listen-client-urls={_ETCD}",
                f"--advertise-client-urls={_ETCD}",
                f"--listen-peer-urls={_ETCD_PEER}",
                f"--initial-advertise-peer-urls={_ETCD_PEER}",
                f"--initial-cluster=default={_ETCD_PEER}",
                "--unsafe-no-fsync",  # the cluster doesn't outlive the machine
                "--log-level=warn",
            ),
        )

    def _apiserver(self) -> Program:
        authority = self._authority
        names = (
            network.API_ADDRESS,
            network.API_SERVICE,
            "127.0.0.1",
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        )
        serving = authority.issue("apiserver", "kube-apiserver", names=names)
        client = authority.issue(
            "apiserver-kubelet-client", "apiserver-kubelet-client", organization="system:masters"
        )
        return self._program(
            "apiserver",
            (
                *self._binaries.kube("kube-apiserver"),
                f"--etcd-servers={_ETCD}",
                f"--advertise-address={network.API_ADDRESS}",
                f"--secure-port={network.API_PORT}",
                f"--tls-cert-file={serving.certificate}",
                f"--tls-private-key-file={serving.key}",
                f"--client-ca-file={authority.certificate}",
                f"--kubelet-client-certificate={client.certificate}",
                f"--kubelet-client-key={client.key}",
                f"--kubelet-certificate-authority={authority.certificate}",
                "--kubelet-preferred-address-types=InternalIP",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-signing-key-file={self._signing_key}",
                f"--service-account-key-file={self._signing_public}",
                f"--service-cluster-ip-range={network.SERVICE_NETWORK}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged",
            ),
        )

    def _scheduler(self) -> Program:
        return self._program(
            "scheduler",
            (
                *self._binaries.kube("kube-scheduler"),
                f"--kubeconfig={self._kubeconfig('kube-scheduler')}",
                "--bind-address=127.0.0.1",
                "--leader-elect=false",  # restarts needn't wait for a lease to end
                "-v=2",
            ),
        )

    def _controller_manager(self) -> Program:
        kubeconfig = self._kubeconfig("kube-controller-manager")
        return self._program(
            "controller-manager",
            (
                *self._binaries.kube("kube-controller-manager"),
                f"--kubeconfig={kubeconfig}",
                "--bind-address=127.0.0.1",
                "--leader-elect=false",
                "--use-service-account-credentials",
                f"--service-account-private-key-file={self._signing_key}",
                f"--root-ca-file={self._authority.certificate}",
                f"--cluster-signing-cert-file={self._authority.certificate}",
                f"--cluster-signing-key-file={self._authority.key}",
            ),
        )

    def _kube_proxy(self, node: str) -> Program:
        """One for all nodes: they share a network namespace. It waits for this Node object."""
        config = self._run / "kube-proxy.json"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                    "kind": "KubeProxyConfiguration",
                    "mode": "iptables",
                    "clientConnection": {"kubeconfig": str(self._kubeconfig("kube-proxy"))},
                    "hostnameOverride": node,
                    "clusterCIDR": network.POD_NETWORK,
                    "conntrack": {"maxPerCore": 0},  # that sysctl is the machine's
                    "healthzBindAddress": "127.0.0.1:10256",
                    "metricsBindAddress": "127.0.0.1:10249",
                },
                indent=1,
            )
        )
        return self._program(
            "kube-proxy", (*self._binaries.kube("kube-proxy"), f"--config={config}")
        )

    def start_etcd(self) -> None:
        self.etcd.start(self._namespaces)

    def start_apiserver(self) -> None:
        self.apiserver.start(self._namespaces)

    def start_registry(self) -> None:
        self.registry.start(self._namespaces)

    def start_controllers(self) -> None:
        """Start what needs the API server."""
        for program in (self.scheduler, self.controller_manager, self.kube_proxy):
            program.start(self._namespaces)

    @property
    def programs(self) -> tuple[Program, ...]:
        return (
            self.etcd,
            self.apiserver,
            self.scheduler,
            self.controller_manager,
            self.kube_proxy,
            self.registry,
        )
