# SPDX-License-Identifier: Apache-2.0
"""AdmissionReview v1: the question that is put to a webhook, and the checks on its answer.

Source: Kubernetes apiserver pkg/admission/plugin/webhook/request and .../errors (v1.36).
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson

from gpuslice.sim.apiserver.failures import ApiError

if TYPE_CHECKING:
    from gpuslice.sim.apiserver.calls import Attributes

Json = dict[str, Any]

API_VERSION = "admission.k8s.io/v1"


class ReviewError(Exception):
    """An answer that isn't one: it counts as a failed call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A webhook's checked answer."""

    allowed: bool
    status: Json
    patch: bytes | None
    warnings: tuple[str, ...]


def request(attributes: Attributes) -> Json:
    """Build the request part, also CEL's variable `request`, without uid and objects."""
    target, kind = attributes.target, attributes.kind
    gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    gvr = {
        "group": target.kind.group,
        "version": target.kind.version,
        "resource": target.kind.plural,
    }
    review: Json = {
        "kind": gvk,
        "resource": gvr,
        "requestKind": gvk,
        "requestResource": gvr,
        "operation": attributes.operation,
        "userInfo": attributes.user.review(),
        "dryRun": attributes.is_dry_run,
        "options": attributes.options,
    }
    if target.subresource:
        review["subResource"] = review["requestSubResource"] = target.subresource
    if target.name:
        review["name"] = target.name
    if target.namespace:
        review["namespace"] = target.namespace
    return review


def question(attributes: Attributes) -> tuple[str, bytes]:
    """Return the uid and the encoded AdmissionReview."""
    uid = str(uuid4())
    asked = {
        "uid": uid,
        **request(attributes),
        "object": attributes.content,
        "oldObject": attributes.before,
    }
    return uid, orjson.dumps(
        {"kind": "AdmissionReview", "apiVersion": API_VERSION, "request": asked}
    )


def verdict(body: bytes, uid: str, *, is_mutating: bool) -> Verdict:
    """Read and check an answer.

    Raises:
        ReviewError: for each way of not being an AdmissionReview's answer to this question.
    """
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as err:
        raise ReviewError(f"couldn't decode the webhook's response: {err}") from err
    if not isinstance(review, dict) or not isinstance(review.get("response"), dict):
        raise ReviewError("webhook response was absent")
    response = review["response"]
    said = (review.get("apiVersion"), review.get("kind"))
    if said != (API_VERSION, "AdmissionReview"):
        raise ReviewError(
            f"expected webhook response of {API_VERSION}, Kind=AdmissionReview, "
            f"got {said[0]}, Kind={said[1]}"
        )
    if response.get("uid") != uid:
        raise ReviewError(f'expected response.uid="{uid}", got "{response.get("uid")}"')
    if not isinstance(response.get("allowed", False), bool):
        raise ReviewError("response.allowed must be true or false")
    return Verdict(
        allowed=response.get("allowed", False),
        status=response.get("status") or {},
        patch=_patch(response) if is_mutating else None,
        warnings=tuple(response.get("warnings") or ()),
    )


def _patch(response: Json) -> bytes | None:
    encoded, patch_type = response.get("patch"), response.get("patchType")
    if not encoded and not patch_type:
        return None
    if not encoded:
        raise ReviewError("webhook returned response.patchType but not response.patch")
    if not patch_type:
        raise ReviewError("webhook returned response.patch but not response.patchType")
    if patch_type != "JSONPatch":
        raise ReviewError(f'webhook returned invalid response.patchType of "{patch_type}"')
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, TypeError, ValueError) as err:
        raise ReviewError(f"response.patch is no base64: {err}") from err


def denial(name: str, status: Json) -> ApiError:
    """Make the refusal that a denying webhook's status becomes."""
    said = f'admission webhook "{name}" denied the request'
    why = status.get("message") or status.get("reason")
    message = f"{said}: {why}" if why else f"{said} without explanation"
    return ApiError(
        max(int(status.get("code") or 0), 400),
        status.get("reason") or "",
        message,
        details=status.get("details"),
    )
