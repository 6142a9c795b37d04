# SPDX-License-Identifier: Apache-2.0
"""Pods for the tests, and what a patch makes of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import jsonpatch

from webhook.mutation import Denial, Mutation, mutate
from webhook.policies import AdmissionPolicy, Fleet

SLICES = "nvidia.com/gpu-slice"
POLICY = AdmissionPolicy(
    fleet=Fleet(kinds_mib=(23034,), most_gpus=8), sidecars=frozenset({"istio-proxy"})
)

Amounts = Mapping[str, Any]


def build_container(
    name: str = "train",
    limits: Amounts | None = None,
    env: Sequence[tuple[str, str]] = (),
    **more: Any,
) -> dict[str, Any]:
    container: dict[str, Any] = {"name": name, "image": "ubuntu", **more}
    if limits is not None:
        container["resources"] = {"limits": dict(limits), "requests": dict(limits)}
    if env:
        container["env"] = [{"name": key, "value": value} for key, value in env]
    return container


def build_pod(
    annotations: Mapping[str, str] | None = None,
    *containers: Mapping[str, Any],
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "pod-1", "namespace": "default"}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if labels is not None:
        metadata["labels"] = dict(labels)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": list(containers) or [build_container()], **spec},
    }


def patched(pod: Mapping[str, Any], mutation: Mutation) -> dict[str, Any]:
    """Return what an RFC 6902 implementation of other people makes of a patch."""
    result = jsonpatch.apply_patch(copy.deepcopy(pod), [dict(each) for each in mutation.operations])
    assert isinstance(result, dict)
    return result


def admitted(
    pod: Mapping[str, Any], policy: AdmissionPolicy = POLICY
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return an admitted pod and the warnings; a second admission must change nothing."""
    result = mutate(pod, policy)
    assert isinstance(result, Mutation), result
    after = patched(pod, result)
    again = mutate(after, policy)
    assert isinstance(again, Mutation), again
    assert again.operations == ()
    return after, result.warnings


def refused(pod: Mapping[str, Any], policy: AdmissionPolicy = POLICY) -> str:
    result = mutate(pod, policy)
    assert isinstance(result, Denial), result
    return result.message


def limits_of(pod: Mapping[str, Any], index: int = 0, group: str = "containers") -> dict[str, Any]:
    container = pod["spec"][group][index]
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    assert limits == (resources.get("requests") or {})
    assert isinstance(limits, dict)
    return limits
