# SPDX-License-Identifier: Apache-2.0
"""The pods of a sequence, and their order within a group of equal ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .steps import Plan

LABEL = "gpuslice-test/sequence"
PROBE = "probe"


def manifest(name: str, plan: Plan, *, sequence: str, resource: str, fit: str) -> dict[str, Any]:
    """Return a pod that no scheduler takes, and that starts and stops as fast as pods do."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {LABEL: sequence}},
        "spec": {
            "schedulerName": "nobody",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostNetwork": True,
            "hostPID": True,  # a `sleep` that is process 1 doesn't end at SIGTERM
            "terminationGracePeriodSeconds": 2,
            "restartPolicy": "Never" if plan.is_short else "Always",
            "nodeSelector": {"kubernetes.io/hostname": "elsewhere"} if plan.is_lost else {},
            "initContainers": _init_containers(plan, resource),
            "containers": [
                _container(
                    f"app{number}",
                    ["sleep", "1" if plan.is_short else "infinity"],
                    {resource: size, fit: plan.fits if number == 0 else 0},
                )
                for number, size in enumerate(plan.apps)
            ],
        },
    }


def _init_containers(plan: Plan, resource: str) -> list[dict[str, Any]]:
    found = []
    if plan.init is not None:
        found.append(_container("init", ["true"], {resource: plan.init}))
    if plan.sidecar is not None:
        sidecar = _container("sidecar", ["sleep", "infinity"], {resource: plan.sidecar})
        found.append(sidecar | {"restartPolicy": "Always"})
    return found


def _container(name: str, command: Sequence[str], asks: Mapping[str, int]) -> dict[str, Any]:
    amounts = {resource: str(amount) for resource, amount in asks.items() if amount}
    return {
        "name": name,
        "image": "ubuntu",
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "resources": {"limits": amounts, "requests": amounts},
    }
