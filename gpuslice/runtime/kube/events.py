# SPDX-License-Identifier: Apache-2.0
"""Kubernetes Events, for people who look at a pod or a node: best effort, never in the way."""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import KubeError, NotFoundError
from gpuslice.runtime.kube.resources import EVENTS, Json, Resource

log = logging.getLogger(__name__)

MESSAGE_LIMIT: Final = 1024
"""The API server refuses longer ones."""
QUEUE_LIMIT: Final = 1000
KNOWN_LIMIT: Final = 4096
QUIET_SECONDS: Final = 10.0
"""The same event is written again no sooner; what comes in between is counted in the next."""
CALL_SECONDS: Final = 5.0
STOP_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saying:
    """What makes two events the same."""

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    is_warning: bool


@dataclass(slots=True)
class _Written:
    event: str
    count: int
    at: datetime
    unwritten: int = 0


class EventRecorder:
    """Writes Events from one thread of its own.

    Args:
        client: writes them.
        component: who reports; e.g. ``gpuslice.dev/device-plugin``.
        instance: which one of them; the node's or the pod's name.
        clock: the time of day in UTC.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        component: str,
        instance: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._clock = clock
        self._queue: queue.Queue[_Saying | None] = queue.Queue(QUEUE_LIMIT)
        self._written: OrderedDict[_Saying, _Written] = OrderedDict()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="events", daemon=True)
        self.dropped = 0
        """How many were lost since the queue was full or the API server refused them."""

    def start(self) -> EventRecorder:
        """Begin to write."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Write what waits, as far as half a second goes."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._given_up.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        self._given_up.set()
        if left := self._queue.qsize():
            log.warning("events_lost", extra={"count": left})

    def record(
        self,
        resource: Resource,
        about: Mapping[str, Any],
        reason: str,
        message: str,
        *,
        warning: bool = False,
    ) -> None:
        """Say something about an object; never blocks, never raises.

        Args:
            resource: the object's kind.
            about: the object; its name is enough.
            reason: one PascalCase word that programs can look for; e.g. ``GpuUnhealthy``.
            message: for people; cut to 1024 characters.
            warning: whether someone should act.
        """
        meta = about.get("metadata") or {}
        saying = _Saying(
            kind=resource.kind,
            api_version=resource.api_version,
            namespace=meta.get("namespace") or "",
            name=meta.get("name") or "",
            uid=meta.get("uid") or "",
            reason=reason,
            message=cut(message),
            is_warning=warning,
        )
        try:
            self._queue.put_nowait(saying)
        except queue.Full:
            self.dropped += 1

    def _write_all(self) -> None:
        while (saying := self._queue.get()) is not None and not self._given_up.is_set():
            try:
                self._write(saying)
            except KubeError as err:
                self.dropped += 1
                log.info("event_not_written", extra={"reason": saying.reason, "error": str(err)})
            except Exception:
                self.dropped += 1
                log.exception("event_not_written", extra={"reason": saying.reason})

    def _write(self, saying: _Saying) -> None:
        now = self._clock()
        known = self._written.get(saying)
        if known is not None:
            known.unwritten += 1
            if (now - known.at).total_seconds() < QUIET_SECONDS:
                return
            if self._count_up(saying, known, now):
                return
        event = self._event(saying, now)
        self._client.create(EVENTS, event, timeout_seconds=CALL_SECONDS)
        self._written[saying] = _Written(event["metadata"]["name"], 1, now)
        self._written.move_to_end(saying)
        while len(self._written) > KNOWN_LIMIT:
            self._written.popitem(last=False)

    def _count_up(self, saying: _Saying, known: _Written, now: datetime) -> bool:
        """Raise the count of an event that is there; return False where it has expired."""
        count = known.count + known.unwritten
        try:
            self._client.patch(
                EVENTS,
                known.event,
                {"count": count, "lastTimestamp": _stamp(now)},
                namespace=saying.namespace or "default",
                timeout_seconds=CALL_SECONDS,
            )
        except NotFoundError:
            return False
        known.count, known.unwritten, known.at = count, 0, now
        self._written.move_to_end(saying)
        return True

    def _event(self, saying: _Saying, now: datetime) -> Json:
        about = {
            "apiVersion": saying.api_version,
            "kind": saying.kind,
            "namespace": saying.namespace,
            "name": saying.name,
            "uid": saying.uid,
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{saying.name[:200]}.{uuid.uuid4().hex[:16]}",
                # Events of what is cluster-scoped live in the default namespace.
                "namespace": saying.namespace or "default",
            },
            "involvedObject": {field: text for field, text in about.items() if text},
            "reason": saying.reason,
            "message": saying.message,
            "type": "Warning" if saying.is_warning else "Normal",
            "source": {"component": self._component, "host": self._instance},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "firstTimestamp": _stamp(now),
            "lastTimestamp": _stamp(now),
            "count": 1,
        }


def cut(message: str) -> str:
    """Return a message no longer than an Event's may be."""
    return message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 3] + "..."


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
