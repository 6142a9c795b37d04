# SPDX-License-Identifier: Apache-2.0
"""PromQL as far as the tests need it: which series and labels an expression asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser

GRAFANA: dict[str, str] = {"$__rate_interval": "5m"}
_VARIABLE = re.compile(r"\$\w+")
_INNER = ("expr", "lhs", "rhs", "param", "args", "vector_selector")


def parse(text: str) -> Any:
    """Parse an expression; Grafana's variables stand for texts.

    Raises:
        ValueError: where it is no PromQL.
    """
    for name, value in GRAFANA.items():
        text = text.replace(name, value)
    return promql_parser.parse(_VARIABLE.sub("x", text))


def selectors(node: Any) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each series' name that an expression reads, with the labels that it matches."""
    if isinstance(node, promql_parser.VectorSelector):
        labels = frozenset(each.name for each in node.matchers.matchers)
        yield str(node.name), labels
        return
    for field in _INNER:
        inner = getattr(node, field, None)
        for each in inner if isinstance(inner, list | tuple) else (inner,):
            if each is not None and not isinstance(each, str | int | float | bool):
                yield from selectors(each)
