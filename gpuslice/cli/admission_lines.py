# SPDX-License-Identifier: Apache-2.0
"""What admission would do to a manifest, and why: in words, without any cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuslice.cli import patch_words
from gpuslice.cli.manifests import Manifest
from gpuslice.contract import names
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import Share
from webhook import mutation, podshape, wishes
from webhook.mutation import Denial, Mutation
from webhook.policies import AdmissionPolicy

Json = Mapping[str, Any]

_TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": (),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
_TEMPLATE: Final = ("spec", "template")
"""Where all other workloads have theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What would become of one object."""

    lines: tuple[str, ...]
    refused: bool = False


def explain(manifest: Manifest, policy: AdmissionPolicy) -> Explained:
    """Say what admission would do to a pod, or to the pods of a template."""
    called = f"{manifest.kind.lower()}/{manifest.name}"
    pod, where = _pod_of(manifest)
    if pod is None:
        return Explained(lines=(f"{called}: is no pod and has no pod template: passes unseen",))
    called += f" ({where})" if where else ""
    if untyped := list(_untyped(pod)):
        return Explained(lines=(f"{called}: REFUSED by the API server", *untyped), refused=True)
    try:
        podshape.check_pod(pod)
    except podshape.ShapeError as error:
        return Explained(lines=(f"{called}: REFUSED: {error}",), refused=True)
    result = mutation.mutate(pod, policy)
    warnings = [f"  warning: {warning}" for warning in result.warnings]
    if isinstance(result, Denial):
        errors = [f"  {error}" for error in result.errors]
        return Explained(lines=(f"{called}: REFUSED", *errors, *warnings), refused=True)
    return Explained(lines=(*_admitted(called, pod, policy, result), *warnings))


def _pod_of(manifest: Manifest) -> tuple[Json | None, str]:
    """Return the pod of a manifest, and the path at which it is."""
    path = _TEMPLATES.get(manifest.kind, _TEMPLATE)
    item: object = manifest.body
    for key in path:
        item = item.get(key) if isinstance(item, Mapping) else None
    return (item if isinstance(item, Mapping) else None), ".".join(path)


def _untyped(pod: Json) -> Iterator[str]:
    """Yield the annotations and labels that YAML reads as no text: ``gpu-fraction: 0.5``."""
    metadata = pod.get("metadata")
    for kind in ("annotations", "labels"):
        texts = metadata.get(kind) if isinstance(metadata, Mapping) else None
        for key, value in (texts if isinstance(texts, Mapping) else {}).items():
            if not isinstance(value, str):
                field = f'metadata.{kind}["{key}"]'
                yield f'  {field}: {value} is no text; write it in quotes: {key}: "{value}"'


def _admitted(called: str, pod: Json, policy: AdmissionPolicy, result: Mutation) -> Iterator[str]:
    wish = wishes.wish_of(pod, policy)
    if wish is None or not result.operations:
        yield f"{called}: admitted {'with changes' if result.operations else 'as it is'}"
    else:
        container = wish.seat.container.get("name")
        yield f'{called}: admitted, with {wish.demand.share} of a GPU for container "{container}"'
        yield from _why(wish.demand, policy)
    for line in patch_words.lines_of(pod, result.operations):
        yield f"  {line}"


def _why(demand: Demand, policy: AdmissionPolicy) -> Iterator[str]:
    share = demand.share
    for memory_mib in policy.kinds_mib:
        slices = policy.rule.slices_of_gpu(memory_mib)
        yield (
            f"  why: of a GPU of {memory_mib} MiB it is {share.memory_mib_on(memory_mib)} MiB, "
            f"and {demand.slices} of {slices} slices{_each(share)}"
        )
    fit = policy.fit_of(share)
    yield (
        f"  why: {names.FIT_PREFIX}{fit} lets the scheduler see on which nodes a single GPU has "
        "that much free"
    )


def _each(share: Share) -> str:
    return "" if share.devices == 1 else f", on each of {share.devices} GPUs of one node"
