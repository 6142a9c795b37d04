# SPDX-License-Identifier: Apache-2.0
"""The texts that stand in the code: its string literals, with a mark where a value is put in."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
VALUE = "\0"


@functools.cache
def texts() -> frozenset[str]:
    """Return every string literal of the product and of the embedded cluster."""
    found: set[str] = set()
    for package in ("gpuslice", "webhook", "deviceplugin"):
        for file in sorted((ROOT / package).rglob("*.py")):
            found.update(_literals(ast.parse(file.read_text(encoding="utf-8"))))
    return frozenset(found)


def _literals(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(each.value) if isinstance(each, ast.Constant) else VALUE for each in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def stands_in_code(message: str) -> bool:
    """Whether one literal has the pieces of a message between its ``<...>``, in their order."""
    pieces = [piece.partition(">")[2] if index else piece for index, piece in _split(message)]
    return any(_in_order(pieces, text) for text in texts())


def _split(message: str) -> Iterator[tuple[int, str]]:
    yield from enumerate(message.split("<"))


def _in_order(pieces: list[str], text: str) -> bool:
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True
