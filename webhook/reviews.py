# SPDX-License-Identifier: Apache-2.0
"""AdmissionReview v1: what the API server asks, and what it is answered.

An answer it can't use counts as a failed call: so every answer bears the request's uid, and its
apiVersion and kind.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from webhook.patching import Operation

Json = Mapping[str, Any]

GROUP: Final = "admission.k8s.io/"
KIND: Final = "AdmissionReview"
MAX_WARNING_CHARACTERS: Final = 120
MAX_WARNINGS_CHARACTERS: Final = 4000
"""Of all together: the API server drops what goes beyond 4096."""


class ReviewError(ValueError):
    """A request is no AdmissionReview: the API server never sends such."""


class Status(TypedDict):
    """Why a request was denied."""

    code: int
    message: str


class _Needed(TypedDict):
    uid: str
    allowed: bool


class Response(_Needed, total=False):
    """The answer's part that says what was decided."""

    status: Status
    patchType: str
    patch: str
    warnings: list[str]


class ReviewAnswer(TypedDict):
    """A whole answer."""

    apiVersion: str
    kind: str
    response: Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One request, as far as anybody here reads it."""

    api_version: str
    uid: str
    operation: str
    """``CREATE``, ``UPDATE``, ..."""
    kind: str
    """Of the object; e.g. ``Pod``, ``Binding``."""
    resource: str
    """As the request's path has it; e.g. ``pods``."""
    sub_resource: str
    """E.g. ``binding``; empty for the object itself."""
    namespace: str
    """The request's own: the object's may be missing."""
    name: str
    """Empty where the server has still to make it from ``generateName``."""
    content: Json | None
    """The object; None for a deletion."""
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A decision: the same whoever asked."""

    allowed: bool = True
    operations: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    code: int = 0
    """Of a denial: an HTTP status of at least 400."""
    message: str = ""
    """Of a denial: understandable by itself."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """For the log: what was decided about what."""


def _text(item: Json, key: str) -> str:
    value = item.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ReviewError(f"request.{key} is no text")
    return value


def decode(body: object) -> Review:
    """Return the request of a decoded body.

    Raises:
        ReviewError: where it is no AdmissionReview with a request.
    """
    if not isinstance(body, Mapping):
        raise ReviewError("the body is no JSON object")
    api_version = body.get("apiVersion")
    if not isinstance(api_version, str) or not api_version.startswith(GROUP):
        raise ReviewError(f"the apiVersion is not {GROUP}v1")
    if body.get("kind") != KIND:
        raise ReviewError(f"the kind is not {KIND}")
    request = body.get("request")
    if not isinstance(request, Mapping):
        raise ReviewError("there is no request")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise ReviewError("request.uid is missing")
    content = request.get("object")
    if content is not None and not isinstance(content, Mapping):
        raise ReviewError("request.object is no JSON object")
    kind, resource = request.get("kind") or {}, request.get("resource") or {}
    if not isinstance(kind, Mapping) or not isinstance(resource, Mapping):
        raise ReviewError("request.kind or request.resource is no JSON object")
    return Review(
        api_version=api_version,
        uid=uid,
        operation=_text(request, "operation"),
        kind=_text(kind, "kind"),
        resource=_text(resource, "resource"),
        sub_resource=_text(request, "subResource"),
        namespace=_text(request, "namespace"),
        name=_text(request, "name"),
        content=content,
        dry_run=request.get("dryRun") is True,
    )


def encode(review: Review, answer: Answer, dump: Callable[[object], bytes]) -> ReviewAnswer:
    """Return an answer as the API server reads it.

    Args:
        review: what is answered.
        answer: the decision.
        dump: writes JSON.
    """
    response: Response = {"uid": review.uid, "allowed": answer.allowed}
    if answer.operations and answer.allowed:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(dump(answer.operations)).decode("ascii")
    if not answer.allowed:
        response["status"] = {"code": answer.code, "message": answer.message}
    if answer.warnings:
        response["warnings"] = clean_warnings(answer.warnings)
    return {"apiVersion": review.api_version, "kind": KIND, "response": response}


def clean_warnings(warnings: Sequence[str]) -> list[str]:
    """Return warnings that the API server will pass on.

    It drops one with a line break or control character without a word, and cuts a long one. So
    they are of one line, and a long one goes on in the next.
    """
    cleaned: list[str] = []
    left = MAX_WARNINGS_CHARACTERS
    for warning in dict.fromkeys(warnings):
        line = "".join(each if each.isprintable() else " " for each in warning)
        for part in textwrap.wrap(
            line, MAX_WARNING_CHARACTERS, subsequent_indent="... ", break_on_hyphens=False
        ):
            left -= len(part)
            if left >= 0:
                cleaned.append(part)
    return cleaned
