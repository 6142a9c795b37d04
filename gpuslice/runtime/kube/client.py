# SPDX-License-Identifier: Apache-2.0
"""The API server's verbs, on JSON objects as they are on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gpuslice.runtime import version
from gpuslice.runtime.kube.endpoint import Cluster
from gpuslice.runtime.kube.resources import PODS, Json, Resource
from gpuslice.runtime.kube.transport import Request, Stream, Transport

PatchKind = Literal["merge", "strategic", "json"]

DEADLINE_SECONDS: Final = 10.0
"""For a call of one object, all tries together."""
LIST_DEADLINE_SECONDS: Final = 60.0
PAGE_SIZE: Final = 500
"""Objects per answer of a long list: 20 000 pods in one would take hundreds of MiB."""

_PATCH_TYPES: Final[Mapping[PatchKind, str]] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which objects of a kind are meant."""

    namespace: str = ""
    """Empty for all."""
    labels: str = ""
    """A selector such as ``app=x,!y``."""
    fields: str = ""
    """A selector such as ``spec.nodeName=node-a``."""

    @property
    def query(self) -> dict[str, str]:
        """The selectors as an API server reads them."""
        chosen = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: text for name, text in chosen.items() if text}


EVERYTHING: Final = Selection()


class KubeClient:
    """One user's access to one API server, shared by any number of threads.

    Every method raises the errors of `gpuslice.runtime.kube.errors`.

    Args:
        cluster: from `config.load`.
        component: who calls, for the user agent; e.g. ``device-plugin``.
        transport: sends the requests; None for real connections.
    """

    def __init__(
        self, cluster: Cluster, *, component: str = "gpuslice", transport: Transport | None = None
    ) -> None:
        self.namespace = cluster.namespace
        agent = f"gpuslice-{component}/{version.text()}"
        self._transport = transport or Transport(cluster, user_agent=agent)

    def close(self) -> None:
        """Close the connections that no thread is using."""
        self._transport.close()

    def get(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        timeout_seconds: float = DEADLINE_SECONDS,
    ) -> Json:
        """Return one object."""
        path = resource.path(namespace=namespace, name=name)
        return self._transport.send(
            Request(method="GET", path=path), timeout_seconds=timeout_seconds
        )

    def list(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        timeout_seconds: float = LIST_DEADLINE_SECONDS,
    ) -> tuple[Json, ...]:
        """Return all objects that match.

        Args:
            resource: their kind.
            namespace: empty for all.
            labels: a selector such as ``app=x,!y``.
            fields: a selector such as ``spec.nodeName=node-a``.
            timeout_seconds: for each page.
        """
        selection = Selection(namespace=namespace, labels=labels, fields=fields)
        found: list[Json] = []
        for page, _ in self.pages(resource, selection, timeout_seconds=timeout_seconds):
            found += page
        return tuple(found)

    def pages(
        self,
        resource: Resource,
        selection: Selection = EVERYTHING,
        *,
        timeout_seconds: float = LIST_DEADLINE_SECONDS,
    ) -> Iterator[tuple[tuple[Json, ...], str]]:
        """Yield the objects that match in pages, each with the resourceVersion of the whole list.

        Raises:
            GoneError: where the list took so long that its version is no longer kept.
        """
        path = resource.path(namespace=selection.namespace)
        query = {"limit": str(PAGE_SIZE)} | selection.query
        while True:
            request = Request(method="GET", path=path, query=query)
            answer = self._transport.send(request, timeout_seconds=timeout_seconds)
            about = answer.get("metadata") or {}
            yield tuple(answer.get("items") or ()), about.get("resourceVersion") or ""
            if not about.get("continue"):
                return
            query = query | {"continue": about["continue"]}

    def create(
        self,
        resource: Resource,
        thing: Mapping[str, Any],
        *,
        namespace: str = "",
        dry_run: bool = False,
        timeout_seconds: float = DEADLINE_SECONDS,
    ) -> Json:
        """Create an object, and return it as stored.

        Args:
            resource: its kind.
            thing: the object.
            namespace: empty for the object's own, which must then be set.
            dry_run: check all and store nothing.
            timeout_seconds: for all tries together.
        """
        path = resource.path(namespace=namespace or _namespace(thing))
        query = {"dryRun": "All"} if dry_run else {}
        request = Request(method="POST", path=path, query=query, body=_complete(thing, resource))
        return self._transport.send(request, timeout_seconds=timeout_seconds)

    def replace(
        self,
        resource: Resource,
        thing: Mapping[str, Any],
        *,
        status: bool = False,
        timeout_seconds: float = DEADLINE_SECONDS,
    ) -> Json:
        """Put an object in its own place, and return it as stored.

        With a resourceVersion in it this is compare-and-swap: ConflictError where the object has
        changed since.

        Args:
            resource: its kind.
            thing: the whole object.
            status: write its status and nothing else.
            timeout_seconds: for all tries together.
        """
        path = resource.path(
            namespace=_namespace(thing),
            name=thing["metadata"]["name"],
            subresource="status" if status else "",
        )
        request = Request(method="PUT", path=path, body=_complete(thing, resource))
        return self._transport.send(request, timeout_seconds=timeout_seconds)

    def patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str = "",
        kind: PatchKind = "merge",
        status: bool = False,
        timeout_seconds: float = DEADLINE_SECONDS,
    ) -> Json:
        """Change an object, and return it as stored.

        Args:
            resource: its kind.
            name: its name.
            patch: what to change; a list of operations where `kind` is json.
            namespace: its namespace.
            kind: custom resources know no strategic patches.
            status: of the ``status`` subresource.
            timeout_seconds: for all tries together.
        """
        request = Request(
            method="PATCH",
            path=resource.path(
                namespace=namespace, name=name, subresource="status" if status else ""
            ),
            body=patch,
            content_type=_PATCH_TYPES[kind],
        )
        return self._transport.send(request, timeout_seconds=timeout_seconds)

    def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
        timeout_seconds: float = DEADLINE_SECONDS,
    ) -> Json:
        """Delete an object.

        Args:
            resource: its kind.
            name: its name.
            namespace: its namespace.
            uid: only if it is still this one.
            resource_version: only if it is still as in this version.
            grace_seconds: how long a pod may take to end; 0 removes it at once.
            timeout_seconds: for all tries together.
        """
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if any(conditions.values()):
            options["preconditions"] = {field: text for field, text in conditions.items() if text}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        path = resource.path(namespace=namespace, name=name)
        request = Request(method="DELETE", path=path, body=options)
        return self._transport.send(request, timeout_seconds=timeout_seconds)

    def bind(
        self,
        pod: Mapping[str, Any],
        node: str,
        *,
        timeout_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """Bind a pod to a node, as a scheduler does."""
        about = pod["metadata"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": about["name"],
                "namespace": about["namespace"],
                "uid": about["uid"],
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = PODS.path(namespace=about["namespace"], name=about["name"], subresource="binding")
        request = Request(method="POST", path=path, body=binding)
        self._transport.send(request, timeout_seconds=timeout_seconds)

    def watch(
        self,
        resource: Resource,
        selection: Selection = EVERYTHING,
        *,
        since: str,
        lifetime_seconds: int,
        silence_seconds: float,
    ) -> Stream:
        """Open a watch; `watch.WatchCache` is what most callers want.

        Args:
            resource: the kind to watch.
            selection: which of them.
            since: the resourceVersion after which changes are told.
            lifetime_seconds: after which the server ends it.
            silence_seconds: after which a silent connection counts as dead.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(lifetime_seconds),
        } | selection.query
        request = Request(
            method="GET", path=resource.path(namespace=selection.namespace), query=query
        )
        return self._transport.stream(request, silence_seconds=silence_seconds)

    def raw(self, path: str, *, timeout_seconds: float = DEADLINE_SECONDS, **query: str) -> Json:
        """Return the JSON object at any path, such as ``/version``."""
        request = Request(method="GET", path=path, query=query)
        return self._transport.send(request, timeout_seconds=timeout_seconds)

    def text(self, path: str, *, timeout_seconds: float = DEADLINE_SECONDS) -> str:
        """Return the lines at any path, such as a pod's page by the API server's proxy.

        Args:
            path: e.g. ``/api/v1/namespaces/a/pods/b:9402/proxy/metrics``.
            timeout_seconds: after which a silent connection counts as dead.
        """
        request = Request(method="GET", path=path)
        stream = self._transport.stream(request, silence_seconds=timeout_seconds)
        try:
            return "".join(f"{line.decode()}\n" for line in stream.lines() if line)
        finally:
            stream.close()


def _namespace(thing: Mapping[str, Any]) -> str:
    return (thing.get("metadata") or {}).get("namespace") or ""


def _complete(thing: Mapping[str, Any], resource: Resource) -> Mapping[str, Any]:
    """Name the kind where the object doesn't: items of lists don't."""
    if thing.get("kind") and thing.get("apiVersion"):
        return thing
    return {"apiVersion": resource.api_version, "kind": resource.kind} | dict(thing)
