# SPDX-License-Identifier: Apache-2.0
"""Reviews of pods and of their templates, answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuslice.contract import names, pods
from webhook import mutation, podshape
from webhook.mutation import Denial
from webhook.policies import AdmissionPolicy
from webhook.reviews import Answer, Review, ReviewError

Json = Mapping[str, Any]

_TEMPLATE_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
TEMPLATE_KINDS: Final = tuple(_TEMPLATE_PATHS)


def admit_pod(review: Review, policy: AdmissionPolicy) -> Answer:
    """Answer the review of a new pod with a patch, a denial, or nothing.

    Raises:
        ReviewError, ShapeError: where it is no review of a pod.
    """
    if review.kind != "Pod":
        raise ReviewError(f"this endpoint reviews a Pod, not {review.kind or 'nothing'}")
    if review.operation != "CREATE" or review.sub_resource or review.content is None:
        # Containers and annotations are settled at creation: anything later passes.
        return Answer()
    podshape.check_pod(review.content)
    result = mutation.mutate(review.content, policy)
    if isinstance(result, Denial):
        return Answer(
            allowed=False, code=result.code, message=result.message, warnings=result.warnings
        )
    return Answer(operations=result.operations, warnings=result.warnings)


def warn_pod(review: Review, policy: AdmissionPolicy) -> Answer:
    """Answer with the same warnings, and never with more than that."""
    answer = admit_pod(review, policy)
    return Answer(warnings=answer.warnings)


def warn_template(review: Review, policy: AdmissionPolicy) -> Answer:
    """Warn the author of a template of what its pods would meet.

    Raises:
        ReviewError, ShapeError: where it is no review of an object with a pod template.
    """
    path = _TEMPLATE_PATHS.get(review.kind)
    if path is None:
        raise ReviewError(f"this endpoint reviews {', '.join(TEMPLATE_KINDS)}, not {review.kind}")
    if review.content is None or review.sub_resource or not policy.template_warnings:
        return Answer()
    template: Json = review.content
    for key in path:
        inner = template.get(key)
        if inner is None:
            return Answer()
        if not isinstance(inner, Mapping):
            raise podshape.ShapeError(f"{key} is no map")
        template = inner
    podshape.check_pod(template)
    where = ".".join(path)
    result = mutation.mutate(template, policy)
    warnings = [*_misplaced(review.content, template), *result.warnings]
    if isinstance(result, Denial):
        warnings += [f"{where}: its pods will be refused: {error}" for error in result.errors]
    return Answer(warnings=tuple(warnings))


def _misplaced(owner: Json, template: Json) -> list[str]:
    about = owner.get("metadata")
    annotations = about.get("annotations") if isinstance(about, Mapping) else None
    if not isinstance(annotations, Mapping):
        return []
    in_template = pods.annotations_of(template)
    keys = [key for plain in names.USER_KEYS for key in (plain, names.prefixed(plain))]
    return [
        f"annotation {key} stands on the object itself: pods get it from "
        "spec.template.metadata.annotations"
        for key in keys
        if key in annotations and key not in in_template
    ]
