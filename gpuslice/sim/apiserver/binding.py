# SPDX-License-Identifier: Apache-2.0
"""Binding a pod to a node: `pods/binding` and the older `bindings`.

Source: Kubernetes pkg/registry/core/pod/storage/storage.go, BindingREST (v1.36).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuslice.sim.apiserver import failures
from gpuslice.sim.apiserver.kinds import BINDINGS, PODS
from gpuslice.sim.apiserver.objects import timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from gpuslice.sim.apiserver.history import Stored

Json = dict[str, Any]


def check(binding: Mapping[str, Any]) -> None:
    """Refuse a Binding that names no node.

    Raises:
        ApiError: 422.
    """
    target = binding.get("target") or {}
    faults = []
    if target.get("kind", "") not in {"", "Node"}:
        faults.append(("target.kind", f'Unsupported value: "{target["kind"]}": only Node is'))
    if not target.get("name"):
        faults.append(("target.name", "Required value"))
    if faults:
        raise failures.invalid(BINDINGS, binding["metadata"].get("name", ""), faults)


def bound(pod: Stored, binding: Mapping[str, Any], now: datetime) -> Json:
    """Return the pod with its node, and with the Binding's annotations and labels merged in.

    Raises:
        ApiError: 409 when this pod can't be bound, now or by this Binding.
    """
    content = pod.copy()
    meta, spec = content["metadata"], content["spec"]
    wanted = binding["metadata"]
    if wanted.get("uid") and wanted["uid"] != meta["uid"]:
        raise _refused(pod, f"Precondition failed: UID: {wanted['uid']}, the pod's: {meta['uid']}")
    if wanted.get("resourceVersion") and wanted["resourceVersion"] != meta["resourceVersion"]:
        raise _refused(pod, "Precondition failed: ResourceVersion")
    if "deletionTimestamp" in meta:
        raise _refused(pod, f"pod {pod.name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        node = spec["nodeName"]
        raise _refused(pod, f'pod {pod.name} is already assigned to node "{node}"')
    if spec.get("schedulingGates"):
        raise _refused(pod, f"pod {pod.name} has non-empty .spec.schedulingGates")
    spec["nodeName"] = binding["target"]["name"]
    for field in ("annotations", "labels"):
        if wanted.get(field):
            meta[field] = {**(meta.get(field) or {}), **wanted[field]}
    status = content.setdefault("status", {})
    others = [one for one in status.get("conditions") or () if one["type"] != "PodScheduled"]
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": timestamp(now),
    }
    status["conditions"] = [*others, scheduled]
    if "generation" in meta:
        meta["generation"] += 1
    return content


def _refused(pod: Stored, why: str) -> failures.ApiError:
    return failures.conflict(PODS, pod.name, why, subresource="binding")
