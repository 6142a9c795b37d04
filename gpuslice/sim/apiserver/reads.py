# SPDX-License-Identifier: Apache-2.0
"""The verbs that change nothing: get, list, watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from gpuslice.sim.apiserver import failures, selectors
from gpuslice.sim.apiserver.calls import Answer, Call
from gpuslice.sim.apiserver.kinds import BINDINGS
from gpuslice.sim.apiserver.store import Store, TooOldError

if TYPE_CHECKING:
    from gpuslice.sim.apiserver.history import Stored, Watch
    from gpuslice.sim.apiserver.selectors import Matcher


class Reads:
    """Answers from the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, call: Call) -> Stored:
        """Return the object that a call names.

        Raises:
            ApiError: 404.
        """
        target = call.target
        stored = self._store.get(target.kind.resource, target.namespace, target.name)
        if stored is None:
            raise failures.not_found(target.kind, target.name)
        return stored

    def get(self, call: Call) -> Answer:
        if call.target.subresource not in {"", "status"}:
            raise failures.not_allowed()
        return Answer(code=200, body=self.find(call).encoded)

    def select(self, call: Call) -> list[Stored]:
        target = call.target
        return self._store.select(target.kind.resource, target.namespace, matcher(call))[0]

    def list(self, call: Call) -> Answer:
        target = call.target
        if target.kind is BINDINGS:
            raise failures.not_allowed()
        items, version = self._store.select(target.kind.resource, target.namespace, matcher(call))
        head = {
            "apiVersion": target.kind.api_version,
            "kind": f"{target.kind.kind}List",
            "metadata": {"resourceVersion": str(version)},
        }
        body = b'%s,"items":[%s]}' % (
            orjson.dumps(head)[:-1],
            b",".join(stored.encoded for stored in items),
        )
        return Answer(code=200, body=body)

    def watch(self, call: Call) -> Watch:
        """Start the watch that a call asks for.

        Raises:
            ApiError: 410 when it would begin before the window of history.
        """
        target, query = call.target, call.query
        asked = query.get("resourceVersion", "")
        is_listing = query.get("sendInitialEvents") == "true"
        if asked and not asked.isdigit():
            raise failures.bad_request(f'invalid resource version "{asked}"')
        from_now = is_listing or asked in {"", "0"}
        shape = {"kind": target.kind.kind, "apiVersion": target.kind.api_version}
        namespace, selected = target.namespace, matcher(call)
        if target.name:
            named = selectors.parse_fields(f"metadata.name={target.name}", target.kind.resource)
            selected = named
        try:
            return self._store.watch(
                target.kind.resource,
                namespace=namespace,
                matches=selected,
                since=None if from_now else int(asked),
                listing_shape=shape if is_listing else None,
            )
        except TooOldError as err:
            raise failures.expired(str(err)) from err


def matcher(call: Call) -> Matcher | None:
    """Read a call's selectors.

    Raises:
        ApiError: 400.
    """
    try:
        return selectors.parse(
            call.query.get("labelSelector", ""),
            call.query.get("fieldSelector", ""),
            call.target.kind.resource,
        )
    except selectors.SelectorError as err:
        raise failures.bad_request(str(err)) from err
