# SPDX-License-Identifier: Apache-2.0
"""Admission: what becomes of a pod that asks for a share.

A pure function from a pod and a policy to a patch or a refusal. It decides by what the pod should
be, never by a mark that it has been here: so a second call finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuslice.contract import names, pods
from webhook import affinity, containers, lookalikes, wishes
from webhook.containers import Seat
from webhook.patching import Operation, Patch
from webhook.policies import AdmissionPolicy
from webhook.wishes import Wish

Json = Mapping[str, Any]

UNPROCESSABLE: Final = 422
"""The HTTP status of a pod that is wrong."""
FORBIDDEN: Final = 403


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A pod is admitted, with these changes."""

    operations: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """A pod is refused."""

    code: int
    errors: tuple[str, ...]
    """All that is wrong, each understandable by itself."""
    warnings: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """All errors in one line."""
        return "; ".join(self.errors)


def mutate(pod: Json, policy: AdmissionPolicy) -> Mutation | Denial:
    """Return what admission does to a pod.

    Args:
        pod: of a good shape (`podshape.check_pod`), otherwise as it arrived.
        policy: settings, and what is known of the cluster.
    """
    annotations = pods.annotations_of(pod)
    warnings = tuple(lookalikes.warnings(annotations))
    if not wishes.asks(pod, policy):
        return _leftovers(pod, policy, warnings)
    reason = _why_left_alone(pod, policy)
    if reason:
        return Mutation(warnings=(reason, *warnings))
    if not policy.enabled:
        error = "GPU sharing is switched off in this cluster (setting gpuSharing): ask for whole "
        error += "GPUs, or ask the cluster's administrator"
        return Denial(code=FORBIDDEN, errors=(error,), warnings=warnings)
    found = wishes.read(pod, policy)
    if found.errors:
        errors = tuple(dict.fromkeys(map(str, found.errors)))
        return Denial(code=UNPROCESSABLE, errors=errors, warnings=warnings)
    if found.wish is None:
        return _leftovers(pod, policy, warnings)
    return _admit(pod, policy, found.wish, (*warnings, *found.warnings))


def _why_left_alone(pod: Json, policy: AdmissionPolicy) -> str:
    if names.MIRROR_ANNOTATION in pods.annotations_of(pod):
        return (
            "a static pod can't share a GPU: it runs before admission sees it; "
            "create it as an ordinary pod"
        )
    scheduler = pods.spec_of(pod).get("schedulerName") or policy.default_scheduler
    if scheduler != policy.default_scheduler and scheduler not in policy.adopted_schedulers:
        return (
            f"this pod can't share a GPU: scheduler {scheduler} places it, not "
            f"{policy.default_scheduler} (setting adoptSchedulers)"
        )
    return ""


def _admit(pod: Json, policy: AdmissionPolicy, wish: Wish, warnings: tuple[str, ...]) -> Mutation:
    patch = Patch(pod)
    admitted_before = names.SHARE_LABEL in pods.labels_of(pod)
    share = wish.demand.share
    said = list(warnings)
    patch.put(("metadata", "labels", names.SHARE_LABEL), str(share))
    for key, value in wish.annotations.items():
        patch.put(("metadata", "annotations", key), value)
    _drop_arbiters_annotations(patch, pod, said)
    fit = policy.fit_of(share).fit_resource
    for seat in containers.seats(pod):
        wanted: dict[str, str] = {}
        if seat == wish.seat:
            wanted = {policy.slice_resource: str(wish.demand.total_slices), fit: "1"}
        _write_resources(patch, policy, seat, wanted)
    if not admitted_before and _has_fits(pod, besides=wish.seat, wanted=fit):
        said.append(f"{names.FIT_PREFIX}* is set by gpuslice: what the pod had there is replaced")
    slices_per_gpu = policy.least_slices_per_gpu
    preferences = affinity.terms(wish.demand, wish.placement, slices_per_gpu)
    affinity.write(patch, pod, preferences, admitted_before=admitted_before)
    _write_spec(patch, pod, policy, said)
    if pods.annotations_of(pod).get(names.MPS) == "true" and not policy.mps_nodes:
        said.append("mps: no known node serves its GPUs through MPS; the mode is the node's choice")
    return Mutation(operations=patch.operations, warnings=tuple(said))


def _write_resources(
    patch: Patch, policy: AdmissionPolicy, seat: Seat, wanted: Mapping[str, str]
) -> None:
    for kind in ("limits", "requests"):
        path = (*seat.path, "resources", kind)
        for resource, amount in wanted.items():
            patch.put((*path, resource), amount)
        for resource in sorted(pods.resources(seat.container, kind)):
            stale = resource.startswith(names.FIT_PREFIX) or (
                resource == policy.slice_resource and pods.asked_of(seat.container, resource) > 0
            )
            taken = resource == policy.whole_gpu_resource and bool(wanted)
            if (stale or taken) and resource not in wanted:
                patch.drop((*path, resource))


def _write_spec(patch: Patch, pod: Json, policy: AdmissionPolicy, said: list[str]) -> None:
    spec = pods.spec_of(pod)
    scheduler = spec.get("schedulerName")
    if scheduler and scheduler != policy.default_scheduler:
        patch.put(("spec", "schedulerName"), policy.default_scheduler)
        said.append(f"schedulerName {scheduler} is replaced by {policy.default_scheduler}")
    if policy.runtime_class is not None and not spec.get("runtimeClassName"):
        patch.put(("spec", "runtimeClassName"), policy.runtime_class)


def _drop_arbiters_annotations(patch: Patch, pod: Json, said: list[str]) -> None:
    copied = [key for key in names.ARBITER_ANNOTATIONS if key in pods.annotations_of(pod)]
    for key in copied:
        patch.drop(("metadata", "annotations", key))
    if copied:
        said.append(f"removed {', '.join(copied)}: gpuslice writes them when the pod is placed")


def _has_fits(pod: Json, *, besides: Seat, wanted: str) -> bool:
    return any(
        key.startswith(names.FIT_PREFIX) and not (seat == besides and key == wanted)
        for seat in containers.seats(pod)
        for kind in ("limits", "requests")
        for key in pods.resources(seat.container, kind)
    )


def _leftovers(pod: Json, policy: AdmissionPolicy, warnings: tuple[str, ...]) -> Mutation:
    """Take from a pod without a share what only sharing pods may have."""
    if _why_left_alone(pod, policy):
        return Mutation(warnings=warnings)
    patch = Patch(pod)
    said = list(warnings)
    _drop_arbiters_annotations(patch, pod, said)
    if names.SHARE_LABEL in pods.labels_of(pod):
        patch.drop(("metadata", "labels", names.SHARE_LABEL))
        said.append(f"removed label {names.SHARE_LABEL}: the pod asks for no share of a GPU")
    before = len(patch.operations)
    for seat in containers.seats(pod):
        _write_resources(patch, policy, seat, {})
    if len(patch.operations) > before:
        said.append(f"removed {names.FIT_PREFIX}*: the pod asks for no share of a GPU")
    return Mutation(operations=patch.operations, warnings=tuple(said))
