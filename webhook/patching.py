# SPDX-License-Identifier: Apache-2.0
"""JSON patches (RFC 6902), written by hand.

A patch that doesn't apply is an error for the user whatever the failure policy says, and a pod
decoded and encoded again loses the fields that are newer than we are. So: few operations, each
on a value that is ours.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

Path = tuple[str | int, ...]
"""Keys and list indexes from the document's root; e.g. ``("spec", "containers", 0)``."""


class Operation(TypedDict):
    """One operation as the API server reads it."""

    op: Literal["add", "remove"]
    path: str
    value: NotRequired[Any]


@functools.lru_cache(maxsize=1024)
def pointer(path: Path) -> str:
    """Return a path as a JSON pointer; e.g. ``/metadata/annotations/a.b~1c``."""
    # The tilde first: the other order would escape the slash's own escape.
    text = ""
    for part in path:
        text += f"/{str(part).replace('~', '~0').replace('/', '~1')}"
    return text


def value_at(document: object, path: Path) -> object:
    """Return the value at a path, None where there is none."""
    # Of decoded JSON: asking for dict and list is ten times as fast as for Mapping and Sequence.
    for part in path:
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and isinstance(part, int) and part < len(document):
            document = document[part]
        else:
            return None
    return document


class Patch:
    """Operations gathered for one document, which it never changes."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Begin a patch for a document as it arrived: any map or list in it may be null."""
        self._document = document
        self._operations: list[Operation] = []
        self._made: set[Path] = set()

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What was gathered, in the order in which it applies."""
        return tuple(self._operations)

    def put(self, path: Path, value: Any) -> None:
        """Set a value in a map, unless it is there already."""
        if value_at(self._document, path) != value:
            self._make_room(path[:-1])
            self._operations.append({"op": "add", "path": pointer(path), "value": value})

    def drop(self, path: Path) -> None:
        """Remove a key from a map, where it is there.

        Of a list, drop the last members first: the others' indexes stay what they are.
        """
        above = value_at(self._document, path[:-1])
        present = path[-1] in above if isinstance(above, dict) else above is not None
        if present:
            self._operations.append({"op": "remove", "path": pointer(path)})

    def append(self, path: Path, value: Any) -> None:
        """Append a member to the list at a path."""
        self._make_room(path[:-1])
        if value_at(self._document, path) is None and path not in self._made:
            self._add(path, [])
        self._operations.append({"op": "add", "path": f"{pointer(path)}/-", "value": value})

    def _make_room(self, path: Path) -> None:
        if value_at(self._document, path) is not None:
            return
        for end in range(1, len(path) + 1):
            above = path[:end]
            if value_at(self._document, above) is None and above not in self._made:
                self._add(above, {})

    def _add(self, path: Path, value: Any) -> None:
        self._operations.append({"op": "add", "path": pointer(path), "value": value})
        self._made.add(path)
