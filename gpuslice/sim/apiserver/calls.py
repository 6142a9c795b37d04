# SPDX-License-Identifier: Apache-2.0
"""One request to the API as a value: what the method, path, query and headers say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import orjson

from gpuslice.sim.apiserver import failures
from gpuslice.sim.apiserver.kinds import NAMESPACES, Kind, Served

if TYPE_CHECKING:
    from gpuslice.sim.apiserver.failures import ApiError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who asks, as AdmissionReviews name them."""

    name: str = "system:admin"
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")

    @classmethod
    def named(cls, name: str) -> User:
        """Give a name the groups that a real server would: by the name's own prefix."""
        groups = ["system:authenticated"]
        if name.startswith("system:node:"):
            groups.append("system:nodes")
        elif name.startswith("system:serviceaccount:"):
            namespace = name.split(":")[2]
            groups += ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
        elif name == "system:admin":
            groups.append("system:masters")
        return cls(name=name, groups=tuple(groups))

    def review(self) -> Json:
        return {"username": self.name, "groups": list(self.groups)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a path names."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request about a target."""

    target: Target
    query: Mapping[str, str]
    user: User
    content_type: str = "application/json"
    body: bytes = b""
    warn: Callable[[str], None] = field(default=lambda _: None)
    """Takes a warning for the one who asks."""

    def json(self) -> Any:
        """Decode the body.

        Raises:
            ApiError: 400 for what is no JSON, 415 for another format.
        """
        if self.content_type and "json" not in self.content_type:
            raise failures.unsupported_media(
                f"the body of the request was in an unknown format: {self.content_type}"
            )
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as err:
            raise failures.bad_request(f"the body can't be decoded as JSON: {err}") from err

    @property
    def is_dry_run(self) -> bool:
        asked = self.query.get("dryRun", "")
        if asked not in {"", "All"}:
            raise failures.invalid(
                self.target.kind, "", [("dryRun", f'Unsupported value: "{asked}": only All is')]
            )
        return asked == "All"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What admission is told about one write."""

    target: Target
    kind: Kind
    """Of the object: for `pods/binding` the kind Binding, while the target's is Pod."""
    operation: str
    content: Json | None
    before: Json | None
    options: Json
    user: User
    is_dry_run: bool
    warn: Callable[[str], None]
    default: Callable[[Json], Json]
    """Fills in the object's absent fields, after every change."""


class Admission(Protocol):
    """What decides about writes before they happen."""

    def mutate(self, attributes: Attributes) -> Json | None: ...
    def validate(self, attributes: Attributes) -> None: ...


class AdmitAll:
    """No admission at all."""

    def mutate(self, attributes: Attributes) -> Json | None:
        return attributes.content

    def validate(self, attributes: Attributes) -> None:
        del attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is sent back: a code and a document, already encoded."""

    code: int
    body: bytes
    content_type: str = "application/json"


def split(path: str) -> tuple[list[str], dict[str, str]]:
    """Split a request's target into the path's steps and the query."""
    parts = urlsplit(path)
    steps = [unquote(step) for step in parts.path.split("/") if step]
    return steps, dict(parse_qsl(parts.query, keep_blank_values=True))


def locate(steps: list[str], served: Served) -> Target:
    """Find what a path below /api/v1 or /apis/<group>/<version> names.

    Raises:
        ApiError: 404 when nothing served is named like this.
    """
    if len(steps) > 2 and steps[0] == "api":
        group, version, rest = "", steps[1], steps[2:]
    elif len(steps) > 3 and steps[0] == "apis":
        group, version, rest = steps[1], steps[2], steps[3:]
    else:
        raise failures.no_such_path()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not _is_namespace_subresource(rest, group):
        namespace, rest = rest[1], rest[2:]
    kind = served.find(group, version, rest[0])
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        raise failures.no_such_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    known = (*kind.subresources, *(("status",) if kind.has_status else ()))
    if (subresource and subresource not in known) or (name and kind.namespaced and not namespace):
        raise failures.no_such_path()
    return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)


def _is_namespace_subresource(rest: list[str], group: str) -> bool:
    known = (*NAMESPACES.subresources, "status", "finalize")
    return not group and len(rest) == 3 and rest[2] in known


def refused(error: ApiError) -> Answer:
    return Answer(code=error.code, body=orjson.dumps(error.status()))
