# SPDX-License-Identifier: Apache-2.0
"""Where the API server is and how to talk to it: from a kubeconfig, or from inside a pod."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuslice.runtime.kube import kubeconfig
from gpuslice.runtime.kube.credentials import TokenFile
from gpuslice.runtime.kube.endpoint import Cluster
from gpuslice.runtime.kube.errors import ConfigError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where kubelet puts a pod's own credentials."""


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
