# SPDX-License-Identifier: Apache-2.0
"""docs/settings.md, from the settings themselves: their types, defaults and docstrings."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

import msgspec

from gpuslice.runtime.settings import Settings

HEAD: Final = """\
# Settings

One YAML file for the whole cluster, read by both halves when they start: the ConfigMap
`gpuslice-settings`, which stands once in the namespace `gpuslice` and once in `gpuslice-nodes`,
with the same content in both. What is not named has its default, so an empty file is a good one.
An unknown key is refused, with the nearest known one named.

After a change in both: the device plugins take it by themselves, a minute or so later when kubelet
has brought it to their nodes, and log the keys that need a restart. The webhook reads it when it
starts. To restart them:

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
    return "\n".join([HEAD, "## Top level\n", _table(Settings), *_sections(Settings, "")])


def _sections(section: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    """Yield the blocks of the sections within a section, and of those within them."""
    for field in msgspec.structs.fields(section):
        inner = section_in(field.type)
        if inner is not None:
            path = f"{prefix}{field.encode_name}"
            yield f"## {path}\n"
            about = " ".join((inspect.getdoc(inner) or "").split())
            yield f"{'' if inner is field.type else 'A list, each: '}{about}\n"
            yield _table(inner)
            yield from _sections(inner, f"{path}.")


def section_in(kind: Any) -> type[msgspec.Struct] | None:
    """Return the section that a field is, or is a list of; None for a plain value."""
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            return each
    return None


def field_texts(section: type) -> dict[str, str]:
    """Return the docstring of each field of a class, which stands below the field.

    Inherited fields too: a section may be put together from several classes.
    """
    texts: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            texts |= _own_texts(base)
    return texts


def _own_texts(section: type) -> dict[str, str]:
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


def _table(section: type[msgspec.Struct]) -> str:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    texts = field_texts(section)
    for field in msgspec.structs.fields(section):
        if section_in(field.type) is None:
            cells = (
                f"`{field.encode_name}`",
                allowed(field.type),
                f"`{_shown(field)}`",
                texts.get(field.name, ""),
            )
            rows.append("| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |")
    return "\n".join(rows) + "\n"


def _shown(field: Any) -> str:
    default = field.default
    if default is msgspec.NODEFAULT:
        default = field.default_factory()
    return json.dumps(list(default) if isinstance(default, tuple) else default)


def allowed(kind: Any) -> str:
    """Return in words what a field takes; e.g. ``integer, at least 1``."""
    schema: Mapping[str, Any] = msgspec.json.schema(kind)
    return ", ".join(_words(schema))


def _words(schema: Mapping[str, Any]) -> Iterator[str]:
    if "anyOf" in schema:
        yield " or ".join(", ".join(_words(each)) for each in schema["anyOf"])
    elif "enum" in schema:
        yield " or ".join(f"`{each}`" for each in sorted(schema["enum"]))
    elif schema.get("type") == "array":
        yield f"list of {', '.join(_words(schema.get('items') or {}))}"
    elif schema.get("type") == "object":
        yield "mapping of texts"
    elif schema.get("type") == "null":
        yield "nothing"
    else:
        yield str(schema.get("description", schema.get("type", "anything")))
        for key, words in _BOUNDS.items():
            if key in schema:
                yield words.format(schema[key])
