# SPDX-License-Identifier: Apache-2.0
"""What is served, told in the documents that clients look it up in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuslice.sim.apiserver import failures

if TYPE_CHECKING:
    from gpuslice.sim.apiserver.kinds import Kind, Served

Json = dict[str, Any]

VERSION: Json = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+gpuslice",
    "gitCommit": "",
    "gitTreeState": "clean",
    "platform": "linux/amd64",
}
_FIXED: dict[tuple[str, ...], Json] = {
    ("version",): VERSION,
    ("api",): {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
}
_ALL_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def document(steps: list[str], served: Served) -> Json | None:
    """Return the discovery document of a path, or None when the path is of something else.

    Raises:
        ApiError: 404 for a group or version that isn't served.
    """
    if fixed := _FIXED.get(tuple(steps)):
        return fixed
    if steps == ["apis"]:
        groups = sorted({kind.group for kind in served if kind.group})
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(group, served) for group in groups],
        }
    if len(steps) == 2 and steps[0] == "apis":
        if not any(kind.group == steps[1] for kind in served):
            raise failures.no_such_path()
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(steps[1], served)}
    if len(steps) == 2 and steps[0] == "api":
        return _resources("", steps[1], served)
    if len(steps) == 3 and steps[0] == "apis":
        return _resources(steps[1], steps[2], served)
    return None


def _group(group: str, served: Served) -> Json:
    versions = [
        {"groupVersion": f"{group}/{version}", "version": version}
        for version in dict.fromkeys(kind.version for kind in served if kind.group == group)
    ]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str, version: str, served: Served) -> Json:
    kinds = [kind for kind in served if (kind.group, kind.version) == (group, version)]
    if not kinds:
        raise failures.no_such_path()
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": kinds[0].api_version,
        "resources": [entry for kind in kinds for entry in _entries(kind)],
    }


def _entries(kind: Kind) -> list[Json]:
    base: Json = {"singularName": "", "namespaced": kind.namespaced, "kind": kind.kind}
    main = {
        "name": kind.plural,
        **base,
        "singularName": kind.kind.lower(),
        "verbs": ["create"] if kind.plural == "bindings" else list(_ALL_VERBS),
    }
    if kind.short_names:
        main["shortNames"] = list(kind.short_names)
    entries = [main]
    if kind.has_status:
        entries.append(
            {"name": f"{kind.plural}/status", **base, "verbs": ["get", "patch", "update"]}
        )
    others = {
        "binding": {"kind": "Binding"},
        "eviction": {"kind": "Eviction", "group": "policy", "version": "v1"},
    }
    entries += [
        {"name": f"{kind.plural}/{one}", **base, **others[one], "verbs": ["create"]}
        for one in kind.subresources
    ]
    return entries
