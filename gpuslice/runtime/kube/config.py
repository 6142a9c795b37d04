# SPDX-License-Identifier: Apache-2.0
"""Where the API server is and how to talk to it: from a kubeconfig, or from inside a pod."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuslice.runtime.kube.credentials import NO_TOKEN, TokenFile, TokenSource
from gpuslice.runtime.kube.errors import ConfigError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where kubelet puts a pod's own credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One API server, as one user reaches it."""

    server: str
    """e.g. ``https://10.0.0.1:6443``."""
    namespace: str = "default"
    """The user's own, or the pod's."""
    token: TokenSource = NO_TOKEN
    ca_file: Path | None = None
    ca_pem: bytes = b""
    """Instead of a file. Neither: the system's authorities."""
    certificate_file: Path | None = None
    key_file: Path | None = None
    certificate_pem: bytes = b""
    key_pem: bytes = b""
    insecure: bool = False
    """Don't check the server's certificate."""
    server_name: str = ""
    """What the certificate must be for, where that is not the address."""

    def tls(self) -> ssl.SSLContext | None:
        """Return a context with the files as they are now, None for plain HTTP.

        Raises:
            ConfigError: where a file is missing or holds no certificate.
        """
        if not self.server.startswith("https://"):
            return None
        try:
            context = ssl.create_default_context(
                cafile=str(self.ca_file) if self.ca_file else None,
                cadata=self.ca_pem.decode("ascii") if self.ca_pem else None,
            )
            # Python 3.13 demands extensions that the CAs of many clusters lack.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._load_client_certificate(context)
        except (OSError, ValueError) as err:
            raise ConfigError(f"the certificates for {self.server} can't be used: {err}") from err
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file)
        elif self.certificate_pem:
            # OpenSSL reads files only; this one is ours alone and gone at once.
            with tempfile.NamedTemporaryFile() as file:
                file.write(self.certificate_pem.rstrip() + b"\n" + self.key_pem)
                file.flush()
                context.load_cert_chain(file.name)


def load(
    path: Path | None = None,
    *,
    context: str = "",
    environment: Mapping[str, str] = os.environ,
    home: Path | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Cluster:
    """Find the cluster: a given file, $KUBECONFIG, the pod's own, or ~/.kube/config.

    Args:
        path: a kubeconfig that must be used.
        context: which of a kubeconfig's contexts; empty for its current one.
        environment: has KUBECONFIG, and KUBERNETES_SERVICE_HOST and _PORT inside a pod.
        home: whose ``.kube/config`` is the last resort; None for the user's.
        service_account: the folder with ``token``, ``ca.crt`` and ``namespace``.

    Raises:
        ConfigError: naming all that was looked for.
    """
    # A pod needs neither YAML nor the kubeconfig's rules.
    from gpuslice.runtime.kube import kubeconfig  # noqa: PLC0415

    if path is not None:
        return kubeconfig.read((path,), context=context)
    listed = [Path(each) for each in environment.get("KUBECONFIG", "").split(os.pathsep) if each]
    if listed:
        return kubeconfig.read(tuple(listed), context=context)
    if environment.get("KUBERNETES_SERVICE_HOST") and not context:
        return in_cluster(environment, service_account)
    last = (home or Path.home()) / ".kube" / "config"
    if last.is_file():
        return kubeconfig.read((last,), context=context)
    raise ConfigError(
        "no cluster is configured: looked for a kubeconfig in $KUBECONFIG (not set) and at "
        f"{last} (no such file), and for a pod's own access in $KUBERNETES_SERVICE_HOST (not set)"
    )


def in_cluster(environment: Mapping[str, str], folder: Path) -> Cluster:
    """Return how a pod reaches its own cluster.

    Raises:
        ConfigError: where the pod has no service account mounted.
    """
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT")
    for needed in ("token", "ca.crt"):
        if not (folder / needed).is_file():
            raise ConfigError(
                f"$KUBERNETES_SERVICE_HOST is set, but {folder / needed} is not there: "
                "is automountServiceAccountToken off?"
            )
    if ":" in host:
        host = f"[{host}]"
    namespace = folder / "namespace"
    is_told = namespace.is_file()
    return Cluster(
        server=f"https://{host}:{port or 443}",
        namespace=namespace.read_text(encoding="utf-8").strip() if is_told else "default",
        token=TokenFile(folder / "token"),
        ca_file=folder / "ca.crt",
    )
