# SPDX-License-Identifier: Apache-2.0
"""Admission: what becomes of a pod that asks for a share.

A pure function from a pod and a policy to a patch or a refusal. It decides by what the pod should
be, never by a mark that it has been here: so a second call finds nothing to do.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuslice.contract import names, pods
from gpuslice.contract.placement import Demand, Policy
from webhook import affinity, containers, lookalikes, refusals, wishes
from webhook.containers import Seat
from webhook.patching import Operation, Patch
from webhook.policies import AdmissionPolicy
from webhook.wishes import Wish

Json = Mapping[str, Any]

UNPROCESSABLE: Final = 422
"""The HTTP status of a pod that is wrong."""
FORBIDDEN: Final = 403
_NOTHING: Final[Mapping[str, str]] = {}


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
    seats = containers.seats(pod)
    if not wishes.asks(pod, seats, policy):
        return _leftovers(pod, seats, policy, warnings)
    reason = _why_left_alone(pod, policy)
    if reason:
        return Mutation(warnings=(reason, *warnings))
    if not policy.enabled:
        error = "GPU sharing is switched off in this cluster (setting gpuSharing): ask for whole "
        error += "GPUs, or ask the cluster's administrator"
        return Denial(code=FORBIDDEN, errors=(error,), warnings=warnings)
    found = wishes.read(pod, seats, policy)
    if found.errors:
        errors = tuple(dict.fromkeys(map(str, found.errors)))
        return Denial(code=UNPROCESSABLE, errors=errors, warnings=warnings)
    if found.wish is None:
        return _leftovers(pod, seats, policy, warnings)
    return _admit(pod, seats, policy, found.wish, (*warnings, *found.warnings))


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


def _admit(
    pod: Json,
    seats: tuple[Seat, ...],
    policy: AdmissionPolicy,
    wish: Wish,
    warnings: tuple[str, ...],
) -> Mutation:
    patch = Patch(pod)
    admitted_before = names.SHARE_LABEL in pods.labels_of(pod)
    words = _words(wish.demand, wish.placement, policy)
    said = list(warnings)
    patch.put(("metadata", "labels", names.SHARE_LABEL), words.share)
    for key, value in wish.annotations.items():
        patch.put(("metadata", "annotations", key), value)
    _drop_arbiters_annotations(patch, pod, said)
    for seat in seats:
        wanted = words.resources if seat is wish.seat else _NOTHING
        _write_resources(patch, policy, seat, wanted)
        if policy.hides_gpus and seat is not wish.seat:
            _hide_gpus(patch, seat)
    if admitted_before:
        _show_gpus(patch, wish.seat)
    if not admitted_before and _has_fits(seats, besides=wish.seat, wanted=words.fit):
        said.append(f"{names.FIT_PREFIX}* is set by gpuslice: what the pod had there is replaced")
    if words.fit != wish.demand.share.fit_resource:
        said.append(
            f"{policy.most_shares} shares are in use: the pod waits for room for "
            f"{words.fit.removeprefix(names.FIT_PREFIX)} (setting maxShares)"
        )
    affinity.write(patch, pod, words.preferences, admitted_before=admitted_before)
    _write_spec(patch, pod, policy, said)
    if pods.annotations_of(pod).get(names.MPS) == "true" and names.MPS not in policy.fleet.modes:
        said.append("mps: no known node serves its GPUs through MPS; the mode is the node's choice")
    return Mutation(operations=patch.operations, warnings=tuple(said))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """What a demand is written as: the same for all its pods."""

    share: str
    fit: str
    resources: Mapping[str, str]
    preferences: tuple[Json, ...]


@functools.lru_cache(maxsize=1024)
def _words(demand: Demand, placement: Policy, policy: AdmissionPolicy) -> _Words:
    fit = policy.fit_of(demand.share).fit_resource
    return _Words(
        share=str(demand.share),
        fit=fit,
        resources={policy.slice_resource: str(demand.total_slices), fit: "1"},
        preferences=tuple(affinity.terms(demand, placement, policy.least_slices_per_gpu)),
    )


def _write_resources(
    patch: Patch, policy: AdmissionPolicy, seat: Seat, wanted: Mapping[str, str]
) -> None:
    for kind in ("limits", "requests"):
        path = (*seat.path, "resources", kind)
        for resource, amount in wanted.items():
            patch.put((*path, resource), amount)
        for resource in sorted(pods.resources(seat.container, kind)):
            if resource not in wanted and _is_to_go(resource, seat, policy, wanted):
                patch.drop((*path, resource))


def _is_to_go(
    resource: str, seat: Seat, policy: AdmissionPolicy, wanted: Mapping[str, str]
) -> bool:
    if resource == policy.slice_resource:
        return pods.asked_of(seat.container, resource) > 0
    taken = resource == policy.whole_gpu_resource and bool(wanted)
    return taken or resource.startswith(names.FIT_PREFIX)


def _hide_gpus(patch: Patch, seat: Seat) -> None:
    variables = seat.container.get("env") or ()
    if all(each.get("name") != names.ENV_VISIBLE_DEVICES for each in variables):
        hidden = {"name": names.ENV_VISIBLE_DEVICES, "value": refusals.NO_GPU}
        patch.append((*seat.path, "env"), hidden)


def _show_gpus(patch: Patch, seat: Seat) -> None:
    """Take back what hid them when the share was another container's."""
    variables = seat.container.get("env") or ()
    for index in reversed(range(len(variables))):
        if refusals.is_hidden_by_us(variables[index]):
            patch.drop((*seat.path, "env", index))


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


def _has_fits(seats: tuple[Seat, ...], *, besides: Seat, wanted: str) -> bool:
    return any(
        key.startswith(names.FIT_PREFIX) and not (seat is besides and key == wanted)
        for seat in seats
        for kind in ("limits", "requests")
        for key in pods.resources(seat.container, kind)
    )


def _leftovers(
    pod: Json, seats: tuple[Seat, ...], policy: AdmissionPolicy, warnings: tuple[str, ...]
) -> Mutation:
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
    for seat in seats:
        _write_resources(patch, policy, seat, _NOTHING)
    if len(patch.operations) > before:
        said.append(f"removed {names.FIT_PREFIX}*: the pod asks for no share of a GPU")
    return Mutation(operations=patch.operations, warnings=tuple(said))
