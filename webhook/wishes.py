# SPDX-License-Identifier: Apache-2.0
"""What a pod asks for, by annotation, by slices written by hand, or by whole GPUs.

All three end as a share for one container. What is wrong is gathered, so that the author hears
of everything at once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpuslice.contract import names, pods
from gpuslice.contract.annotations import (
    FieldError,
    Request,
    RequestError,
    annotation_field,
    read_request,
)
from gpuslice.contract.placement import Demand, Policy
from gpuslice.contract.shares import Share, ShareError
from webhook import containers, lookalikes, refusals
from webhook.containers import Seat
from webhook.policies import AdmissionPolicy

Json = Mapping[str, Any]
Seats = tuple[Seat, ...]

_READ_KEYS: Final = frozenset(
    {*names.USER_KEYS, *map(names.prefixed, names.USER_KEYS), names.MPS, names.PLACEMENT}
)
"""The annotations that `read_request` looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A share for one container."""

    seat: Seat
    demand: Demand
    placement: Policy
    annotations: Mapping[str, str]
    """The same wish as annotations, to be written where it was made in another way."""


@dataclass(slots=True, kw_only=True)
class Findings:
    """What was read of one pod."""

    wish: Wish | None = None
    errors: list[FieldError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def asks(pod: Json, seats: Seats, policy: AdmissionPolicy) -> bool:
    """Whether a pod asks for a share in any way, be it a wrong one."""
    annotations = pods.annotations_of(pod)
    keys = (names.FRACTION, names.MEMORY, names.DEVICES)
    if any(key in annotations or names.prefixed(key) in annotations for key in keys):
        return True
    if names.MPS in annotations or any(lookalikes.refusals(annotations)):
        return True
    resources = [policy.slice_resource]
    if policy.whole_gpu_resource is not None and policy.enabled:
        resources.append(policy.whole_gpu_resource)
    return any(_has_amount(seat, resource) for seat in seats for resource in resources)


def _has_amount(seat: Seat, resource: str) -> bool:
    """Whether an amount stands there that is wrong, or above zero."""
    return seat.mentions(resource) and (
        pods.asked_of(seat.container, resource) > 0
        or any(refusals.amount_errors((seat,), resource))
    )


@functools.lru_cache(maxsize=1024)
def _request(
    user_annotations: frozenset[tuple[str, str]], policy: AdmissionPolicy
) -> Request | None:
    """Return what annotations ask for; pods come in thousands, and their annotations in few."""
    return read_request(dict(user_annotations), policy.bounds)


def wish_of(pod: Json, policy: AdmissionPolicy) -> Wish | None:
    """Return what a pod wants, None where it asks for no share or for none that is right."""
    seats = containers.seats(pod)
    return read(pod, seats, policy).wish if asks(pod, seats, policy) else None


def read(pod: Json, seats: Seats, policy: AdmissionPolicy) -> Findings:
    """Return what a pod that asks for a share wants, and all that is wrong with it."""
    found = Findings()
    annotations = pods.annotations_of(pod)
    found.errors += lookalikes.refusals(annotations)
    found.errors += refusals.node_errors(pod)
    found.errors += refusals.amount_errors(seats, policy.slice_resource)
    request = None
    try:
        request = _request(
            frozenset(each for each in annotations.items() if each[0] in _READ_KEYS), policy
        )
    except RequestError as error:
        found.errors += error.errors
        return found
    slicing = _asking(seats, policy.slice_resource)
    if request is not None:
        found.errors += refusals.whole_gpu_errors(seats, policy)
        _by_annotation(found, pod, seats, policy, request)
    elif slicing:
        found.errors += refusals.whole_gpu_errors(seats, policy)
        _by_hand(found, pod, policy, slicing)
    elif policy.whole_gpu_resource is not None:
        _by_whole_gpus(found, pod, seats, policy)
    if found.wish is not None:
        found.errors += refusals.variable_errors(
            found.wish.seat, admitted_before=names.SHARE_LABEL in pods.labels_of(pod)
        )
    return found


def _asking(seats: Seats, resource: str) -> Seats:
    return tuple(seat for seat in seats if pods.asked_of(seat.container, resource) > 0)


@functools.lru_cache(maxsize=1024)
def _demand(share: Share, policy: AdmissionPolicy) -> Demand:
    slices = policy.rule.slices_of_share(share, policy.kinds_mib)
    return Demand(share=share, slices=slices)


def _wish(
    policy: AdmissionPolicy,
    seat: Seat,
    share: Share,
    placement: Policy | None,
    annotations: Mapping[str, str] | None = None,
) -> Wish:
    return Wish(
        seat=seat,
        demand=_demand(share, policy),
        placement=placement or policy.placement,
        annotations=annotations or {},
    )


def _by_annotation(
    found: Findings,
    pod: Json,
    seats: Seats,
    policy: AdmissionPolicy,
    request: Request,
) -> None:
    admitted_before = names.SHARE_LABEL in pods.labels_of(pod)
    slicing = _asking(seats, policy.slice_resource)
    choice = containers.choose(
        seats, name=request.container_name, asking=slicing, sidecars=policy.sidecars
    )
    if choice.seat is None or not choice.seat.runs_along:
        found.errors.append(_container_error(pod, request, choice))
        return
    if choice.warning:
        found.warnings.append(choice.warning)
    found.wish = _wish(policy, choice.seat, request.share, request.placement)
    if admitted_before:
        return
    for seat in slicing:
        asked = pods.asked_of(seat.container, policy.slice_resource)
        wanted = found.wish.demand.total_slices if seat == choice.seat else 0
        if asked != wanted:
            found.errors.append(
                FieldError(
                    field=refusals.resource_field(seat, "limits", policy.slice_resource),
                    value=str(asked),
                    problem=f"says something else than the annotation, which means {wanted} there",
                    allowed="the annotation alone",
                    example=f"remove {policy.slice_resource}",
                )
            )


def _container_error(pod: Json, request: Request, choice: containers.Choice) -> FieldError:
    key = names.prefixed(names.CONTAINER)
    if key not in pods.annotations_of(pod):
        key = names.CONTAINER
    problem = choice.problem
    if choice.seat is not None:
        problem = "is an init container that ends before the others start"
    return FieldError(
        field=annotation_field(key),
        value=request.container_name or (choice.seat.name if choice.seat else ""),
        problem=problem,
        allowed="one of the pod's containers, or a sidecar with restartPolicy Always",
        example=f'{names.CONTAINER}: "train"',
    )


def _only(found: Findings, asking: tuple[Seat, ...], resource: str) -> Seat | None:
    """Return the one container that asks for a resource, or say what is wrong."""
    names_of_all = ", ".join(seat.name for seat in asking)
    seat = asking[0]
    if len(asking) > 1:
        problem, allowed = f"stands in several containers ({names_of_all})", "one container"
    elif not seat.runs_along:
        problem = "stands in an init container that ends before the others start"
        allowed = "a regular container, or a sidecar with restartPolicy Always"
    else:
        return seat
    found.errors.append(
        FieldError(
            field=refusals.resource_field(seat, "limits", resource),
            value=str(pods.asked_of(seat.container, resource)),
            problem=problem,
            allowed=allowed,
            example=f'{names.FRACTION}: "0.5" with {names.CONTAINER}: "train"',
        )
    )
    return None


def _placement(pod: Json) -> Policy | None:
    text = pods.annotations_of(pod).get(names.PLACEMENT)
    return None if text is None else Policy(text)


def _by_hand(
    found: Findings, pod: Json, policy: AdmissionPolicy, slicing: tuple[Seat, ...]
) -> None:
    seat = _only(found, slicing, policy.slice_resource)
    if seat is None:
        return
    asked = pods.asked_of(seat.container, policy.slice_resource)
    try:
        share = policy.rule.share_of_slices(asked, policy.kinds_mib)
    except ShareError as error:
        found.errors.append(
            FieldError(
                field=refusals.resource_field(seat, "limits", policy.slice_resource),
                value=str(asked),
                problem=f"is more than one GPU: {error}",
                allowed="slices of one GPU; more GPUs are asked for by annotation",
                example=f'{names.FRACTION}: "1" with {names.DEVICES}: "2"',
            )
        )
        return
    if share.memory_mib is None:
        written = {names.prefixed(names.FRACTION): str(share)}
    else:
        written = {names.prefixed(names.MEMORY): str(share.memory_mib)}
    try:
        # The annotation is what a second call reads: it must pass there too.
        read_request({**pods.annotations_of(pod), **written}, policy.bounds)
    except RequestError as error:
        found.errors += [
            dataclasses.replace(
                each,
                field=refusals.resource_field(seat, "limits", policy.slice_resource),
                value=str(asked),
                problem=f"means {each.value}, which {each.problem}",
            )
            for each in error.errors
        ]
        return
    found.wish = _wish(policy, seat, share, _placement(pod), written)


def _by_whole_gpus(found: Findings, pod: Json, seats: Seats, policy: AdmissionPolicy) -> None:
    resource = policy.whole_gpu_resource
    assert resource is not None
    found.errors += refusals.amount_errors(seats, resource)
    asking = _asking(seats, resource)
    seat = _only(found, asking, resource) if asking else None
    if seat is None:
        return
    found.errors += refusals.mig_errors(seats)
    devices = pods.asked_of(seat.container, resource)
    written = {names.prefixed(names.FRACTION): "1"}
    if devices > 1:
        written[names.prefixed(names.DEVICES)] = str(devices)
    try:
        # Read as if the user had written it: the same bounds and the same words for both.
        request = read_request({**pods.annotations_of(pod), **written}, policy.bounds)
    except RequestError as error:
        found.errors += error.errors
        return
    assert request is not None
    found.wish = _wish(policy, seat, request.share, request.placement, written)
