# SPDX-License-Identifier: Apache-2.0
"""What the Node says of its GPUs: the fits, the labels, and the ledger they were computed from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuslice.contract import fits, names, pods, quantity
from gpuslice.contract.ledger import Ledger
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import Share

Json = Mapping[str, Any]

MIXED: Final = "mixed"
_NOT_IN_A_LABEL: Final = re.compile(r"[^A-Za-z0-9._-]+")
MAX_LABEL: Final = 63


def demands_of(
    listed: Iterable[Demand], bound: Iterable[Json], slice_resource: str
) -> tuple[Demand, ...]:
    """Return one demand per share: those listed, and those that bound pods ask the fit of.

    Of one share the largest k counts, so that each of its pods would have room.
    """
    largest: dict[Share, int] = {}
    asks = filter(None, (pods.ask(pod, slice_resource) for pod in bound))
    for demand in (*listed, *(Demand(share=ask.fit, slices=ask.demand.slices) for ask in asks)):
        largest[demand.share] = max(demand.slices, largest.get(demand.share, 0))
    return tuple(Demand(share=share, slices=slices) for share, slices in largest.items())


def values(
    ledger: Ledger, demands: Iterable[Demand], bound: Iterable[Json], slice_resource: str
) -> dict[names.ResourceName, int]:
    """Return the fits of a node: never below the number of bound pods that ask for each.

    kubelet adds them up again when it restarts, and would kill what is too many.
    """
    asks = filter(None, (pods.ask(pod, slice_resource) for pod in bound if not pods.has_ended(pod)))
    asked = Counter(ask.fit.fit_resource for ask in asks)
    exact = fits.fits(ledger, demands)
    return {
        resource: max(exact.get(resource, 0), asked[resource])
        for resource in sorted({*exact, *asked})
    }


def labels(ledger: Ledger, mode: str) -> dict[str, str | None]:
    """Return the Node's labels; None for one that says nothing and is to go."""
    products = {gpu.product for gpu in ledger.gpus}
    memories = {gpu.memory_mib for gpu in ledger.gpus}
    none = not ledger.gpus
    return {
        names.PARTIAL_ROOM_LABEL: None if none else str(fits.partial_room(ledger)),
        names.EMPTY_GPUS_LABEL: None if none else str(fits.empty_gpus(ledger)),
        names.PRODUCT_LABEL: None if none else _product(products),
        names.NODE_MEMORY_LABEL: str(min(memories)) if len(memories) == 1 else None,
        names.MODE_LABEL: None if none else mode,
    }


def _product(products: set[str]) -> str | None:
    if len(products) != 1:
        return MIXED
    text = _NOT_IN_A_LABEL.sub("-", min(products))[:MAX_LABEL].strip("-._")
    return text or None


def node_patch(
    node: Json,
    *,
    fits_wanted: Mapping[names.ResourceName, int],
    labels_wanted: Mapping[str, str | None],
    ledger_version: str,
) -> dict[str, Any] | None:
    """Return the merge patch of ``nodes/status`` that makes a Node say this, None if it does.

    Only what differs is in it. A fit that is no longer wanted goes, from both maps: kubelet sets
    allocatable to capacity for what it doesn't know, so they must be equal.
    """
    metadata: dict[str, Any] = {}
    if pods.annotations_of(node).get(names.LEDGER_ANNOTATION) != ledger_version:
        metadata["annotations"] = {names.LEDGER_ANNOTATION: ledger_version}
    has = pods.labels_of(node)
    changed = {key: value for key, value in labels_wanted.items() if has.get(key) != value}
    if changed:
        metadata["labels"] = changed
    status = {
        kind: difference
        for kind in ("capacity", "allocatable")
        if (difference := _difference((node.get("status") or {}).get(kind) or {}, fits_wanted))
    }
    patch: dict[str, Any] = {}
    if (metadata or status) and "resourceVersion" in pods.meta_of(node):
        # A patch that arrives late must not undo a later one.
        metadata["resourceVersion"] = pods.meta_of(node)["resourceVersion"]
    if metadata:
        patch["metadata"] = metadata
    if status:
        patch["status"] = status
    return patch or None


def _difference(
    has: Mapping[str, Any], wanted: Mapping[names.ResourceName, int]
) -> dict[str, str | None]:
    ours = [resource for resource in has if resource.startswith(names.FIT_PREFIX)]
    difference: dict[str, str | None] = {
        str(resource): str(value)
        for resource, value in wanted.items()
        if _count(has.get(resource)) != value
    }
    difference.update({resource: None for resource in sorted(ours) if resource not in wanted})
    return difference


def _count(value: Any) -> int | None:
    if value is None:
        return None
    try:
        return quantity.parse_count(str(value))
    except quantity.QuantityError:
        return None


def whole_gpus_sold(node: Json) -> int:
    """Return how many GPUs another plugin sells on this node as ``nvidia.com/gpu``: none, if all
    is well. The same GPUs would be promised twice.
    """  # noqa: D205 - one sentence, then why
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return _count(allocatable.get(names.WHOLE_GPU_RESOURCE)) or 0
