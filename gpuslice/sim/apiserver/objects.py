# SPDX-License-Identifier: Apache-2.0
"""What every object's metadata must be, and what the server itself writes into it."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from gpuslice.sim.apiserver import failures

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from gpuslice.sim.apiserver.kinds import Kind

Json = dict[str, Any]

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_MAX_BASE = 58
"""Characters of a generateName that are kept: 63 less the five that are added."""
_ANNOTATIONS_LIMIT_BYTES = 256 * 1024
_FREE_NAMES = frozenset({"clusterroles", "clusterrolebindings", "roles", "rolebindings"})
"""Resources whose names may hold colons."""
_SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def timestamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def is_qualified(name: str) -> bool:
    """Say whether a text can be a label's key: an optional DNS prefix, a slash, a name."""
    prefix, slash, rest = name.rpartition("/")
    if slash and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(rest) <= 63 and _NAME_PART.fullmatch(rest) is not None


def named(kind: Kind, content: Json, *, namespace: str, name: str = "") -> Json:
    """Fill in the namespace and name of the path.

    Raises:
        ApiError: 400 where body and path differ.
    """
    meta = dict(content["metadata"])
    if kind.namespaced:
        if meta.setdefault("namespace", namespace) not in {namespace, ""}:
            raise failures.bad_request(
                "the namespace of the provided object does not match the namespace sent on "
                "the request"
            )
        meta["namespace"] = namespace
    elif meta.pop("namespace", ""):
        raise failures.bad_request(f"{kind.qualified} have no namespace")
    if name and meta.setdefault("name", name) != name:
        raise failures.bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL ({name})"
        )
    return {**content, "metadata": meta}


def with_generated_name(content: Json) -> Json:
    """Make a name from `generateName`. Admission has run before: it sees no such name."""
    meta = content["metadata"]
    if meta.get("name") or not meta.get("generateName"):
        return content
    suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))
    return {**content, "metadata": {**meta, "name": meta["generateName"][:_MAX_BASE] + suffix}}


def wiped(content: Json) -> Json:
    """Drop from a new object what only the server writes. Admission runs after this."""
    meta = {
        key: value
        for key, value in content["metadata"].items()
        if key not in (*_SERVER_OWNED, "resourceVersion", "generation", "selfLink")
    }
    return {**content, "metadata": meta}


def check(kind: Kind, content: Json) -> list[tuple[str, str]]:
    """List the faults of an object's metadata as pairs of field and text."""
    meta = content["metadata"]
    faults = []
    name = meta.get("name", "")
    if not name:
        faults.append(("metadata.name", "Required value: name or generateName is required"))
    elif kind.plural not in _FREE_NAMES and not (len(name) <= 253 and _SUBDOMAIN.fullmatch(name)):
        faults.append(
            ("metadata.name", f'Invalid value: "{name}": must be a lowercase RFC 1123 subdomain')
        )
    for key, value in (meta.get("labels") or {}).items():
        if not is_qualified(key):
            faults.append(("metadata.labels", f'Invalid value: "{key}": not a qualified name'))
        if value and (len(value) > 63 or not _NAME_PART.fullmatch(value)):
            faults.append(("metadata.labels", f'Invalid value: "{value}": not a label value'))
    annotations = meta.get("annotations") or {}
    faults += [
        ("metadata.annotations", f'Invalid value: "{key}": not a qualified name')
        for key in annotations
        if not is_qualified(key.lower())
    ]
    if sum(len(k) + len(v or "") for k, v in annotations.items()) > _ANNOTATIONS_LIMIT_BYTES:
        faults.append(("metadata.annotations", "Too long: may not be more than 262144 bytes"))
    for number, owner in enumerate(meta.get("ownerReferences") or ()):
        faults += [
            (f"metadata.ownerReferences[{number}].{field}", "Invalid value: must not be empty")
            for field in ("apiVersion", "kind", "name", "uid")
            if not owner.get(field)
        ]
    return faults


def stamp_new(content: Json, now: datetime) -> Json:
    """Give a new object its uid, time and first generation."""
    meta = dict(wiped(content)["metadata"])
    meta["uid"] = str(uuid4())
    meta["creationTimestamp"] = timestamp(now)
    if "spec" in content:
        meta["generation"] = 1
    return {**content, "metadata": meta}


def kept(content: Json, before: Mapping[str, Any]) -> Json:
    """Put back what only the server writes, and count the generation."""
    old = before["metadata"]
    meta = dict(content["metadata"])
    for field in (*_SERVER_OWNED, "generation"):
        if field in old:
            meta[field] = old[field]
        else:
            meta.pop(field, None)
    result = {**content, "metadata": meta}
    if "generation" in old and result.get("spec") != before.get("spec"):
        meta["generation"] = old["generation"] + 1
    return result


def with_status_of(content: Json, before: Mapping[str, Any]) -> Json:
    """Take everything but the status from the writer."""
    result = {key: value for key, value in content.items() if key != "status"}
    if "status" in before:
        result["status"] = before["status"]
    return result


def with_only_status(kind: Kind, content: Json, before: Mapping[str, Any]) -> Json:
    """Take the status from the writer; of built-in kinds labels and annotations too."""
    result = {key: value for key, value in before.items() if key != "status"}
    if "status" in content:
        result["status"] = content["status"]
    if not kind.is_custom:
        meta = dict(before["metadata"])
        for field in ("labels", "annotations", "finalizers"):
            meta.pop(field, None)
            if field in content["metadata"]:
                meta[field] = content["metadata"][field]
        result["metadata"] = meta
    return result
