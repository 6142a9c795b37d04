# SPDX-License-Identifier: Apache-2.0
"""What a sharing pod must not have beside its share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuslice.contract import names, pods, quantity
from gpuslice.contract.annotations import FieldError
from webhook.containers import Seat
from webhook.policies import AdmissionPolicy

Json = Mapping[str, Any]

NO_GPU: Final = "void"
"""To the NVIDIA runtime: leave the container as it is."""
_OWN_PREFIXES: Final = ("CUDA_MPS_", "CUDA_DEVICE_")
_HARMLESS: Final = frozenset({"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER"})
"""Frameworks set them: they say how a GPU is used, not which one or how much of it."""
_EXAMPLE: Final = f'{names.FRACTION}: "0.5"'


def resource_field(seat: Seat, kind: str, resource: str) -> str:
    """Return the path of an amount as error messages name it."""
    return f'{seat.field}.resources.{kind}["{resource}"]'


def amount_errors(seats: tuple[Seat, ...], resource: str) -> Iterator[FieldError]:
    """Yield an error for each amount of a resource that is no whole number.

    The API server refuses them too, but doesn't say how to ask for a part of a GPU.
    """
    for seat in seats:
        for kind in ("limits", "requests"):
            text = pods.resources(seat.container, kind).get(resource)
            if text is None:
                continue
            try:
                quantity.parse_count(str(text))
            except quantity.QuantityError as error:
                yield FieldError(
                    field=resource_field(seat, kind, resource),
                    value=str(text),
                    problem=str(error),
                    allowed="a whole number; a part of a GPU is asked for by annotation",
                    example=_EXAMPLE,
                )


def node_errors(pod: Json) -> Iterator[FieldError]:
    """Yield an error where the pod goes round the scheduler, and so round the ledger."""
    node = pods.node_name(pod)
    if node is not None:
        yield FieldError(
            field="spec.nodeName",
            value=node,
            problem="goes round the scheduler: no GPU would be set aside for the pod",
            allowed="a node selector",
            example=f"nodeSelector: {{kubernetes.io/hostname: {node}}}",
        )


def whole_gpu_errors(seats: tuple[Seat, ...], policy: AdmissionPolicy) -> Iterator[FieldError]:
    """Yield an error for each whole GPU or MIG instance beside a share."""
    whole = policy.whole_gpu_resource or names.WHOLE_GPU_RESOURCE
    # Zero too, unless whole GPUs are ours: NVIDIA's own plugin would be asked.
    zero_is_fine = policy.whole_gpu_resource is not None
    for seat in seats:
        for kind in ("limits", "requests"):
            text = pods.resources(seat.container, kind).get(whole)
            if text is not None and not (zero_is_fine and _is_zero(text)):
                yield _beside_share(seat, kind, whole, text)
    yield from mig_errors(seats)


def mig_errors(seats: tuple[Seat, ...]) -> Iterator[FieldError]:
    """Yield an error for each MIG instance beside a share: two ways to ask for a GPU."""
    for seat in seats:
        for kind in ("limits", "requests"):
            amounts = pods.resources(seat.container, kind)
            found = [each for each in amounts if each.startswith(names.MIG_RESOURCE_PREFIX)]
            for resource in sorted(found):
                yield _beside_share(seat, kind, resource, amounts[resource])


def _beside_share(seat: Seat, kind: str, resource: str, text: object) -> FieldError:
    return FieldError(
        field=resource_field(seat, kind, resource),
        value=str(text),
        problem="stands beside a share of a GPU",
        allowed="either a share or whole GPUs",
        example=f"remove {resource}, or the share",
    )


def _is_zero(text: object) -> bool:
    try:
        return quantity.parse_count(str(text)) == 0
    except quantity.QuantityError:
        return False


def is_hidden_by_us(variable: Json) -> bool:
    """Whether admission may have set a variable, to keep a container from seeing every GPU."""
    return variable.get("name") == names.ENV_VISIBLE_DEVICES and variable.get("value") == NO_GPU


def variable_errors(seat: Seat, *, admitted_before: bool) -> Iterator[FieldError]:
    """Yield an error for each variable by which a container would choose its GPU itself."""
    for variable in seat.container.get("env") or ():
        name = variable.get("name") or ""
        is_ours = name == names.ENV_VISIBLE_DEVICES or name.startswith(_OWN_PREFIXES)
        if not is_ours or name in _HARMLESS:
            continue
        if not (admitted_before and is_hidden_by_us(variable)):
            yield FieldError(
                field=f'{seat.field}.env["{name}"]',
                value=str(variable.get("value") or ""),
                problem="is set by gpuslice on a container that shares a GPU",
                allowed="no such variable",
                example=f"remove {name}",
            )
