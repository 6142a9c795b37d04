# SPDX-License-Identifier: Apache-2.0
"""From a method and a path to the verb that answers it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import orjson

from gpuslice.sim.apiserver import discovery, failures
from gpuslice.sim.apiserver.calls import Answer, Call, User, locate, split
from gpuslice.sim.apiserver.history import line

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.sim.apiserver.calls import Target
    from gpuslice.sim.apiserver.history import Watch
    from gpuslice.sim.apiserver.kinds import Served
    from gpuslice.sim.apiserver.reads import Reads
    from gpuslice.sim.apiserver.store import Store
    from gpuslice.sim.apiserver.writes import Writes


class Headers(Protocol):
    """A request's headers, by name in any case."""

    def get(self, name: str, /) -> str | None: ...


_HEALTH = (["healthz"], ["readyz"], ["livez"])
_MIN_WATCH_SECONDS = 1800
"""A watch that names no timeout is ended after this long to twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWatch:
    """A watch with what its stream needs to know."""

    watch: Watch
    timeout_seconds: float
    bookmark_seconds: float
    has_bookmarks: bool
    bookmark: Callable[[], None]
    close: Callable[[], None]


class Dispatch:
    """Answers requests.

    Args:
        served: the kinds.
        store: the objects.
        reads: the verbs that change nothing.
        writes: the verbs that change something.
        bookmark_seconds: the time without events after which a watch is told the version.
    """

    def __init__(
        self,
        *,
        served: Served,
        store: Store,
        reads: Reads,
        writes: Writes,
        bookmark_seconds: float,
    ) -> None:
        self._served = served
        self._store = store
        self._reads = reads
        self._writes = writes
        self._bookmark_seconds = bookmark_seconds

    def answer(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        warn: Callable[[str], None],
    ) -> Answer | OpenWatch:
        """Answer one request.

        Raises:
            ApiError: for every refusal.
        """
        steps, query = split(path)
        if steps in _HEALTH:
            return Answer(code=200, body=b"ok", content_type="text/plain; charset=utf-8")
        document = discovery.document(steps, self._served)
        if document is not None:
            return Answer(code=200, body=orjson.dumps(document))
        call = Call(
            target=locate(steps, self._served),
            query=query,
            user=user_of(headers),
            content_type=headers.get("Content-Type") or "",
            body=body,
            warn=warn,
        )
        if method == "GET":
            return self._read(call)
        has_name = bool(call.target.name)
        writes: dict[tuple[str, bool], Callable[[Call], Answer]] = {
            ("POST", False): self._writes.create,
            ("POST", True): self._writes.create,
            ("PUT", True): self._writes.update,
            ("PATCH", True): self._writes.patch,
            ("DELETE", True): self._writes.delete,
            ("DELETE", False): self._writes.delete_collection,
        }
        verb = writes.get((method, has_name))
        if verb is None:
            raise failures.not_allowed()
        return verb(call)

    def _read(self, call: Call) -> Answer | OpenWatch:
        if call.query.get("watch") in {"1", "true"}:
            return self._watch(call)
        return self._reads.get(call) if call.target.name else self._reads.list(call)

    def _watch(self, call: Call) -> Answer | OpenWatch:
        try:
            watch = self._reads.watch(call)
        except failures.ApiError as err:
            if err.code != 410:
                raise
            # As a real server tells it: the stream begins well, and its only event is the error.
            text = line("ERROR", orjson.dumps(err.status()))
            return Answer(code=200, body=text)
        asked = call.query.get("timeoutSeconds", "")
        default = _MIN_WATCH_SECONDS + secrets.randbelow(_MIN_WATCH_SECONDS)
        return OpenWatch(
            watch=watch,
            timeout_seconds=float(asked) if asked.isdigit() and int(asked) else default,
            bookmark_seconds=self._bookmark_seconds,
            has_bookmarks=call.query.get("allowWatchBookmarks") in {"1", "true"},
            bookmark=lambda: self._store.bookmark(watch, _shape(call.target)),
            close=lambda: self._store.unwatch(call.target.kind.resource, watch),
        )


def _shape(target: Target) -> dict[str, str]:
    return {"kind": target.kind.kind, "apiVersion": target.kind.api_version}


def user_of(headers: Headers) -> User:
    """Name the one who asks: the bearer token is the name, since this cluster has no secrets."""
    said = headers.get("Authorization") or ""
    scheme, _, token = said.partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return User.named(token.strip())
    return User()
