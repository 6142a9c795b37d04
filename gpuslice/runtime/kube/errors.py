# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a call of the API server.

KubeError                 never raised directly
├── ConfigError           no way to reach a cluster is configured, or it can't be used
├── UnavailableError      no answer, or one that says "not now": another try may do
└── RefusedError          an answer that another try won't change
    ├── InvalidError      400, 413, 415, 422: the object is wrong
    ├── UnauthorizedError 401
    ├── ForbiddenError    403: RBAC or an admission plugin
    ├── NotFoundError     404
    ├── ConflictError     409: decided on an old version, or denied by the arbiter
    │   └── AlreadyExistsError
    └── GoneError         410: that resourceVersion is no longer kept
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class KubeError(Exception):
    """Root of this package's errors; never raised directly.

    Args:
        message: for people; an API server's own words where it gave some.
        code: the HTTP status, 0 where there was no answer.
        reason: the API server's machine-readable word, such as ``NotFound``.
        retry_after_seconds: what the answer asked to wait before another try.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int = 0,
        reason: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class ConfigError(KubeError):
    """No cluster is configured, or its configuration can't be used."""


class UnavailableError(KubeError):
    """No answer (connection, deadline), or 429 and 5xx: another try may do."""


class RefusedError(KubeError):
    """An answer that another try of the same call won't change."""


class InvalidError(RefusedError):
    """The object or the call is wrong (400, 413, 415, 422)."""


class UnauthorizedError(RefusedError):
    """The API server doesn't know who calls (401)."""


class ForbiddenError(RefusedError):
    """The caller may not do this (403)."""


class NotFoundError(RefusedError):
    """There is no such object or path (404)."""


class ConflictError(RefusedError):
    """The call was decided on an old version of the object, or a webhook denied with 409."""


class AlreadyExistsError(ConflictError):
    """An object of that name exists (409 with this reason)."""


class GoneError(RefusedError):
    """The resourceVersion or continue token asked for is no longer kept (410)."""


_BY_CODE: Mapping[int, type[RefusedError]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    413: InvalidError,
    415: InvalidError,
    422: InvalidError,
}


def error_of(
    status: Mapping[str, Any], code: int, *, retry_after_seconds: float | None = None
) -> KubeError:
    """Return the error that an answer means.

    Args:
        status: the answer's ``Status`` object, empty where it had none.
        code: the HTTP status; or 0 for a watch's ERROR event, whose Status has the code.
        retry_after_seconds: the header of that name.
    """
    code = code or status.get("code") or 0
    reason = status.get("reason") or ""
    message = status.get("message") or f"the API server answered {code}"
    chosen: type[KubeError]
    if code == 429 or code >= 500 or code == 0:
        chosen = UnavailableError
    elif reason == "AlreadyExists":
        chosen = AlreadyExistsError
    else:
        chosen = _BY_CODE.get(code, RefusedError)
    return chosen(message, code=code, reason=reason, retry_after_seconds=retry_after_seconds)
