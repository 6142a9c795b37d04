# SPDX-License-Identifier: Apache-2.0
"""From JSON to an object of a kind: what a typed decoder would refuse, is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuslice.sim.apiserver import failures
from gpuslice.sim.apiserver.kinds import NODES, PODS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.sim.apiserver.kinds import Kind

Json = dict[str, Any]

_METADATA: dict[str, type] = {
    "name": str,
    "generateName": str,
    "namespace": str,
    "resourceVersion": str,
    "uid": str,
    "labels": dict,
    "annotations": dict,
    "ownerReferences": list,
    "finalizers": list,
}


def decode(kind: Kind, content: Any) -> Json:
    """Take a JSON value as an object of a kind.

    Returns:
        The object, with its apiVersion and kind, and with metadata.

    Raises:
        ApiError: 400 for no object, another kind, or fields of another type than the kind's.
    """
    if not isinstance(content, dict):
        raise failures.bad_request("the object provided is unrecognized: it is no JSON object")
    said = (content.get("apiVersion", ""), content.get("kind", ""))
    if said not in {(kind.api_version, kind.kind), ("", ""), ("", kind.kind)}:
        raise failures.bad_request(
            f"{said[0]}, Kind={said[1]} in the body can't be handled as "
            f"{kind.api_version}, Kind={kind.kind} of the path"
        )
    decoded: Json = {**content, "apiVersion": kind.api_version, "kind": kind.kind}
    decoded["metadata"] = _metadata(kind, content.get("metadata"))
    for field, value, wanted in _typed_fields(kind, decoded):
        if value is not None and not isinstance(value, wanted):
            raise _undecodable(kind, field, value)
    return decoded


def _metadata(kind: Kind, said: Any) -> Json:
    if not isinstance(said, dict | None):
        raise _undecodable(kind, "metadata", said)
    meta: Json = {key: value for key, value in (said or {}).items() if value is not None}
    for field, wanted in _METADATA.items():
        if not isinstance(meta.get(field, wanted()), wanted):
            raise _undecodable(kind, f"metadata.{field}", meta[field])
    for field in ("labels", "annotations"):
        if field in meta:
            meta[field] = {
                key: _text(kind, f"metadata.{field}[{key}]", value)
                for key, value in meta[field].items()
            }
    for number, owner in enumerate(meta.get("ownerReferences", ())):
        if not isinstance(owner, dict):
            raise _undecodable(kind, f"metadata.ownerReferences[{number}]", owner)
    return meta


def _text(kind: Kind, field: str, value: Any) -> str:
    if not isinstance(value, str | None):
        raise _undecodable(kind, field, value)
    return value or ""


_Field = tuple[str, Any, type | tuple[type, ...]]


def _typed_fields(kind: Kind, content: Json) -> Iterator[_Field]:
    """Walk over the fields whose types the server's own code relies on.

    What is inside of a field is walked over after the field itself was found to be right.
    """
    if kind.is_custom:
        yield "spec", content.get("spec"), dict
    elif kind is PODS:
        yield "spec", content.get("spec"), dict
        yield "status", content.get("status"), dict
        yield from _pod_fields(content.get("spec") or {})
    elif kind is NODES:
        yield "spec", content.get("spec"), dict
        yield "status", content.get("status"), dict
        for field in ("capacity", "allocatable"):
            yield f"status.{field}", (content.get("status") or {}).get(field), dict


def _pod_fields(spec: Json) -> Iterator[_Field]:
    yield "spec.nodeName", spec.get("nodeName"), str
    yield "spec.terminationGracePeriodSeconds", spec.get("terminationGracePeriodSeconds"), int
    for field in ("initContainers", "containers"):
        yield f"spec.{field}", spec.get(field), list
        for number, container in enumerate(spec.get(field) or ()):
            path = f"spec.{field}[{number}]"
            yield path, "null" if container is None else container, dict
            yield f"{path}.name", container.get("name"), str
            yield f"{path}.image", container.get("image"), str
            resources = container.get("resources")
            yield f"{path}.resources", resources, dict
            for inner in ("limits", "requests"):
                yield f"{path}.resources.{inner}", (resources or {}).get(inner), dict


def _undecodable(kind: Kind, field: str, value: Any) -> failures.ApiError:
    return failures.bad_request(
        f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
        f"{field} can't be a {type(value).__name__}"
    )
