# SPDX-License-Identifier: Apache-2.0
"""What kubelet needs of an API server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gpuslice.contract.pods import Json


class ApiError(Exception):
    """A request failed."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code
        """The HTTP status, 0 where there was no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a watch tells."""

    kind: Literal["LIST", "ADDED", "MODIFIED", "DELETED"]
    """LIST: these objects and no others exist; at the start, and whenever events were missed."""
    objects: tuple[Json, ...]


class Watch(Protocol):
    """A watch that reconnects by itself."""

    def changes(self) -> Iterator[Change]:
        """Yield what changes, a LIST first, until it is cut."""

    def cut(self) -> None:
        """End it, from any thread."""


class NodeApi(Protocol):
    """Nodes. Failures are `ApiError`."""

    def get_node(self, name: str) -> Json:
        """Return a node."""

    def create_node(self, node: Json) -> None:
        """Create a node."""

    def patch_node_status(self, name: str, patch: Mapping[str, Any]) -> None:
        """Apply a merge patch to a node's status."""

    def watch_node(self, name: str) -> Watch:
        """Watch one node."""


class PodApi(Protocol):
    """Pods. Failures are `ApiError`."""

    def patch_pod_status(self, pod: Json, status: Mapping[str, Any]) -> None:
        """Apply a merge patch to the status of this very pod."""

    def delete_pod(self, pod: Json) -> None:
        """Remove this very pod at once, as kubelet does when nothing of it is left."""

    def create_event(self, event: Json) -> None:
        """Create an event."""

    def watch_pods(self, node: str) -> Watch:
        """Watch the pods that are bound to a node."""


class Api(NodeApi, PodApi, Protocol):
    """All of it."""
