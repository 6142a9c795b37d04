# SPDX-License-Identifier: Apache-2.0
"""A kubelet's way to the API server, over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from gpuslice.contract import pods
from gpuslice.contract.pods import Json
from gpuslice.runtime.kube.client import KubeClient, Selection
from gpuslice.runtime.kube.errors import GoneError, KubeError, error_of
from gpuslice.runtime.kube.resources import EVENTS, NODES, PODS, Resource
from gpuslice.runtime.kube.transport import Stream
from gpuslice.sim.kubelet.api import ApiError, Change

CALL_SECONDS: Final = 5.0
RECONNECT_SECONDS: Final = 0.2
LIFETIME_SECONDS: Final = 300
SILENCE_SECONDS: Final = 60.0

Answer = TypeVar("Answer")


class RemoteWatch:
    """Lists and watches the objects of a kind that match a field selector."""

    def __init__(self, client: KubeClient, resource: Resource, fields: str) -> None:
        self._client, self._resource = client, resource
        self._selection = Selection(fields=fields)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._stream: Stream | None = None

    def changes(self) -> Iterator[Change]:
        """Yield what changes, a LIST first, until it is cut."""
        version = ""
        while not self._stop.is_set():
            try:
                if not version:
                    objects, version = self._list()
                    yield Change(kind="LIST", objects=objects)
                for event in self._events(version):
                    thing = event["object"]
                    version = pods.meta_of(thing).get("resourceVersion") or version
                    if event["type"] != "BOOKMARK":
                        yield Change(kind=event["type"], objects=(thing,))
            except GoneError:
                version = ""
            except KubeError:
                self._stop.wait(RECONNECT_SECONDS)

    def cut(self) -> None:
        """End it, from any thread."""
        with self._lock:
            self._stop.set()
            if self._stream is not None:
                self._stream.cut()

    def _list(self) -> tuple[tuple[Json, ...], str]:
        pages = list(self._client.pages(self._resource, self._selection))
        return tuple(each for page, _ in pages for each in page), pages[0][1]

    def _events(self, version: str) -> Iterator[dict[str, Any]]:
        stream = self._client.watch(
            self._resource,
            since=version,
            selection=self._selection,
            lifetime_seconds=LIFETIME_SECONDS,
            silence_seconds=SILENCE_SECONDS,
        )
        with self._lock:
            if self._stop.is_set():
                stream.close()
                return
            self._stream = stream
        try:
            for line in stream.lines():
                if self._stop.is_set():
                    return
                event = json.loads(line) if line.strip() else {}
                if event.get("type") == "ERROR":
                    raise error_of(event.get("object") or {}, 0)
                if event:
                    yield event
        finally:
            with self._lock:
                self._stream = None
            stream.close()


class RemoteApi:
    """Implements `gpuslice.sim.kubelet.api.Api` on our Kubernetes client."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def get_node(self, name: str) -> Json:
        """Return a node."""
        return _call(lambda: self._client.get(NODES, name, timeout_seconds=CALL_SECONDS))

    def create_node(self, node: Json) -> None:
        """Create a node."""
        _call(lambda: self._client.create(NODES, node, timeout_seconds=CALL_SECONDS))

    def patch_node_status(self, name: str, patch: Mapping[str, Any]) -> None:
        """Apply a merge patch to a node's status."""
        _call(
            lambda: self._client.patch(
                NODES, name, patch, status=True, timeout_seconds=CALL_SECONDS
            )
        )

    def watch_node(self, name: str) -> RemoteWatch:
        """Watch one node."""
        return RemoteWatch(self._client, NODES, f"metadata.name={name}")

    def patch_pod_status(self, pod: Json, status: Mapping[str, Any]) -> None:
        """Apply a merge patch to the status of this very pod: another of its name is a conflict."""
        about = pods.ref(pod)
        patch = {"metadata": {"uid": about.uid}, "status": status}
        _call(
            lambda: self._client.patch(
                PODS,
                about.name,
                patch,
                namespace=about.namespace,
                status=True,
                timeout_seconds=CALL_SECONDS,
            )
        )

    def delete_pod(self, pod: Json) -> None:
        """Remove this very pod at once."""
        about = pods.ref(pod)
        _call(
            lambda: self._client.delete(
                PODS,
                about.name,
                namespace=about.namespace,
                uid=about.uid,
                grace_seconds=0,
                timeout_seconds=CALL_SECONDS,
            )
        )

    def create_event(self, event: Json) -> None:
        """Create an event."""
        _call(lambda: self._client.create(EVENTS, event, timeout_seconds=CALL_SECONDS))

    def watch_pods(self, node: str) -> RemoteWatch:
        """Watch the pods that are bound to a node."""
        return RemoteWatch(self._client, PODS, f"spec.nodeName={node}")


def _call(send: Callable[[], Answer]) -> Answer:
    try:
        return send()
    except KubeError as err:
        raise ApiError(str(err), code=err.code) from err
