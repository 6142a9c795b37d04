# SPDX-License-Identifier: Apache-2.0
"""docs/settings.md, from the settings themselves: their types, defaults and docstrings."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from gpuslice.runtime.settings import Settings

HEAD: Final = """\
# Settings

One YAML file for the whole cluster, read by both halves when they start: the ConfigMap
`gpuslice-settings`, which stands once in the namespace `gpuslice` and once in `gpuslice-nodes`,
with the same content in both. What is not named has its default, so an empty file is a good one.
An unknown key is refused, with the nearest known one named.

After a change, restart both halves:

    kubectl -n gpuslice rollout restart deployment/gpuslice-webhook
    kubectl -n gpuslice-nodes rollout restart daemonset/gpuslice-device-plugin

<!-- Made by `make docs-reference` from gpuslice/runtime/settings.py: edit that. -->
"""
_BOUNDS: Final[Mapping[str, str]] = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
}


def page() -> str:
    """Return the page."""
    blocks = [HEAD, "## Top level\n", _table(Settings)]
    for field in msgspec.structs.fields(Settings):
        if _is_section(field.type):
            about = inspect.getdoc(field.type) or ""
            blocks += [f"## {field.encode_name}\n", f"{about}\n", _table(field.type)]
    return "\n".join(blocks)


def field_texts(section: type) -> dict[str, str]:
    """Return the docstring of each field of a class, which stands below the field."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    last = ""
    for statement in body.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                last = name
            case ast.Expr(value=ast.Constant(value=str(text))) if last:
                texts[last] = " ".join(text.split())
                last = ""
            case _:
                last = ""
    return texts


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _table(section: type[msgspec.Struct]) -> str:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    texts = field_texts(section)
    for field in msgspec.structs.fields(section):
        if not _is_section(field.type):
            cells = (
                f"`{field.encode_name}`",
                allowed(field.type),
                f"`{_shown(field.default)}`",
                texts.get(field.name, ""),
            )
            rows.append("| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |")
    return "\n".join(rows) + "\n"


def _shown(default: Any) -> str:
    return json.dumps(list(default) if isinstance(default, tuple) else default)


def allowed(kind: Any) -> str:
    """Return in words what a field takes; e.g. ``integer, at least 1``."""
    schema: Mapping[str, Any] = msgspec.json.schema(kind)
    return ", ".join(_words(schema))


def _words(schema: Mapping[str, Any]) -> Iterator[str]:
    if "enum" in schema:
        yield " or ".join(f"`{each}`" for each in sorted(schema["enum"]))
        return
    if schema["type"] == "array":
        yield f"list of {', '.join(_words(schema['items']))}"
        return
    yield str(schema.get("description", schema["type"]))
    for key, words in _BOUNDS.items():
        if key in schema:
            yield words.format(schema[key])
