# SPDX-License-Identifier: Apache-2.0
"""A pod's status as kubelet writes it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuslice.contract.pods import Json
from gpuslice.sim.kubelet.admission import Rejection
from gpuslice.sim.kubelet.runs import ContainerRun, PodRun

OWN_CONDITIONS: Final = ("Initialized", "Ready", "ContainersReady")

Health = Callable[[str], Mapping[str, Mapping[str, str]]]
"""Returns, for a container's name, resource -> device id -> health."""

Stamp = Callable[[float], str]
"""Returns a moment of kubelet's clock as an RFC 3339 text."""


def rejected(pod: Json, rejection: Rejection, now: str) -> dict[str, Any]:
    """Return the status of a pod that kubelet refuses: final."""
    return {
        "phase": "Failed",
        "reason": rejection.reason,
        "message": f"Pod was rejected: {rejection.message}",
        "startTime": (pod.get("status") or {}).get("startTime") or now,
    }


def rejected_event(pod: Json, rejection: Rejection, now: str, *, node: str) -> dict[str, Any]:
    """Return the Warning event that goes with a refusal."""
    about = pod.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{about.get('name')}.", "namespace": about.get("namespace")},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            **{key: about.get(key) for key in ("namespace", "name", "uid")},
        },
        "type": "Warning",
        "reason": rejection.reason,
        "message": rejection.message,
        "source": {"component": "kubelet", "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def status_of(run: PodRun, stamp: Stamp, health: Health) -> dict[str, Any]:
    """Return the status of an admitted pod. Its other conditions are kept as they are.

    It names every device of every app container with its health, as Kubernetes does from 1.36 on
    (in random order up to 1.38, here by id).
    """
    phase = run.phase
    kept = [
        each
        for each in (run.pod.get("status") or {}).get("conditions") or ()
        if each.get("type") not in OWN_CONDITIONS
    ]
    initialised = all(
        part.ended_at is not None if part.kind == "init" else part.started_at is not None
        for part in run.parts
        if part.kind != "app"
    )
    ready = phase == "Running" and all(part.is_running for part in run.apps)
    values = {"Initialized": initialised, "Ready": ready, "ContainersReady": ready}
    status: dict[str, Any] = {
        "phase": phase,
        "conditions": kept
        + [{"type": name, "status": str(value)} for name, value in values.items()],
        "containerStatuses": [
            _container(part, stamp) | _devices(health(part.name)) for part in run.apps
        ],
    }
    others = [_container(part, stamp) for part in run.parts if part.kind != "app"]
    if others:
        status["initContainerStatuses"] = others
    return status


def _container(part: ContainerRun, stamp: Stamp) -> dict[str, Any]:
    return {
        "name": part.name,
        "image": str(part.spec.get("image") or ""),
        "imageID": "",
        "ready": part.is_running or (part.kind == "init" and part.ended_at is not None),
        "started": part.is_running,
        "restartCount": part.restarts,
        "state": _state(part, stamp),
    }


def _devices(health: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    if not health:
        return {}
    return {
        "allocatedResourcesStatus": [
            {
                "name": resource,
                "resources": [
                    {"resourceID": device_id, "health": each} for device_id, each in devices.items()
                ],
            }
            for resource, devices in sorted(health.items())
        ]
    }


def _state(part: ContainerRun, stamp: Stamp) -> dict[str, Any]:
    if part.trouble:
        return {"waiting": {"reason": "CreateContainerConfigError", "message": part.trouble}}
    if part.started_at is None:
        return {"waiting": {"reason": "ContainerCreating"}}
    started = stamp(part.started_at)
    if part.ended_at is None:
        return {"running": {"startedAt": started}}
    return {
        "terminated": {
            "exitCode": part.exit_code,
            "reason": "Error" if part.exit_code else "Completed",
            "startedAt": started,
            "finishedAt": stamp(part.ended_at),
        }
    }
