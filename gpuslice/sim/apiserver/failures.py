# SPDX-License-Identifier: Apache-2.0
"""The refusals of an API server: each is a Status object with a code and a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.sim.apiserver.kinds import Kind

Json = dict[str, Any]


class ApiError(Exception):
    """One refusal, ready to be sent.

    Args:
        code: the HTTP status.
        reason: the machine-readable word, such as `NotFound`.
        message: for people.
        details: what it is about, as `Status.details`.
    """

    def __init__(
        self, code: int, reason: str, message: str, *, details: Json | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.warnings: tuple[str, ...] = ()

    def status(self) -> Json:
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details:
            status["details"] = self.details
        status["code"] = self.code
        return status


def success(code: int, details: Json | None = None) -> Json:
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        status["details"] = details
    status["code"] = code
    return status


def about(kind: Kind, name: str) -> Json:
    details = {"name": name, "kind": kind.plural}
    if kind.group:
        details["group"] = kind.group
    return details


def not_found(kind: Kind, name: str) -> ApiError:
    return ApiError(
        404, "NotFound", f'{kind.qualified} "{name}" not found', details=about(kind, name)
    )


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(kind: Kind, name: str) -> ApiError:
    return ApiError(
        409,
        "AlreadyExists",
        f'{kind.qualified} "{name}" already exists',
        details=about(kind, name),
    )


def conflict(kind: Kind, name: str, why: str, *, subresource: str = "") -> ApiError:
    resource = f"{kind.qualified}/{subresource}" if subresource else kind.qualified
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {resource} "{name}": {why}',
        details=about(kind, name),
    )


def stale(kind: Kind, name: str) -> ApiError:
    return conflict(
        kind,
        name,
        "the object has been modified; please apply your changes to the latest version "
        "and try again",
    )


def invalid(kind: Kind, name: str, faults: Sequence[tuple[str, str]]) -> ApiError:
    """Refuse an object with its faults.

    Args:
        kind: of the object.
        name: of the object.
        faults: pairs of a field's path and what is wrong there.
    """
    said = [f"{field}: {text}" for field, text in faults]
    text = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    details = about(kind, name) | {
        "kind": kind.kind,
        "causes": [
            {"reason": "FieldValueInvalid", "message": text, "field": field}
            for field, text in faults
        ],
    }
    return ApiError(422, "Invalid", f'{kind.kind} "{name}" is invalid: {text}', details=details)


def forbidden(kind: Kind, name: str, why: str) -> ApiError:
    return ApiError(
        403,
        "Forbidden",
        f'{kind.qualified} "{name}" is forbidden: {why}',
        details=about(kind, name),
    )


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unsupported_media(message: str) -> ApiError:
    return ApiError(415, "UnsupportedMediaType", message)


def not_allowed() -> ApiError:
    return ApiError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
    )


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def internal(message: str) -> ApiError:
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")
