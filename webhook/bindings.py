# SPDX-License-Identifier: Apache-2.0
"""Reviews of binds, answered: by the ``pods/binding`` subresource or the ``bindings`` endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuslice.contract import names
from webhook.arbiter import Binding, Verdict
from webhook.patching import Patch
from webhook.podshape import ShapeError
from webhook.reviews import Answer, Review, ReviewError

Json = Mapping[str, Any]

KIND: Final = "Binding"


def answer(review: Review, bind: Callable[[Binding], Verdict]) -> Answer:
    """Answer the review of a bind.

    The API server merges a Binding's annotations into the pod in the same write as its node name.

    Raises:
        ReviewError, ShapeError: where it is no review of a bind.
    """
    if review.kind != KIND:
        raise ReviewError(f"this endpoint reviews a {KIND}, not {review.kind or 'nothing'}")
    if review.operation != "CREATE" or review.content is None:
        return Answer()
    binding = _binding(review, review.content)
    if binding is None:
        return Answer()
    verdict = bind(binding)
    if verdict.denial is not None:
        return Answer(allowed=False, code=verdict.denial.code, message=verdict.denial.message)
    patch = Patch(review.content)
    for key, value in sorted(verdict.annotations.items()):
        patch.put(("metadata", "annotations", key), value)
    if verdict.pod_uid and binding.uid is None:
        # The API server takes it as a precondition.
        patch.put(("metadata", "uid"), verdict.pod_uid)
    return Answer(operations=patch.operations)


def _binding(review: Review, content: Json) -> Binding | None:
    """Return what is to be bound, None where the target is no node: the API server refuses that."""
    about, target = content.get("metadata") or {}, content.get("target") or {}
    if not isinstance(about, Mapping) or not isinstance(target, Mapping):
        raise ShapeError("metadata or target is no map")
    annotations = about.get("annotations")
    if annotations is not None and not isinstance(annotations, Mapping):
        raise ShapeError("metadata.annotations is no map")
    kind, node = target.get("kind") or "Node", target.get("name")
    name, uid = review.name or about.get("name"), about.get("uid")
    if kind != "Node" or not node or not name:
        return None
    for text in (node, name, uid):
        if text is not None and not isinstance(text, str):
            raise ShapeError("a name or uid is no text")
    return Binding(
        namespace=review.namespace,
        name=name,
        uid=names.PodUid(uid) if uid else None,
        node=names.NodeName(node),
        dry_run=review.dry_run,
    )
