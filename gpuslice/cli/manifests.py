# SPDX-License-Identifier: Apache-2.0
"""Manifests: the objects of YAML or JSON files, of folders, or of standard input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import yaml

STDIN: Final = "-"
SUFFIXES: Final = (".yaml", ".yml", ".json")


class ManifestError(ValueError):
    """A manifest can't be read, with the fix where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One object as its author wrote it."""

    source: str
    """The file's name, or ``-``."""
    body: dict[str, Any]
    """The object, with `apiVersion`, `kind` and `metadata.name`."""

    @property
    def kind(self) -> str:
        """Its kind; e.g. ``Pod``."""
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        """Its name, or the prefix that the server completes, with a star."""
        metadata = self.body["metadata"]
        return str(metadata.get("name") or f"{metadata['generateName']}*")

    @property
    def namespace(self) -> str | None:
        """The namespace it names, None where it names none."""
        namespace = self.body["metadata"].get("namespace")
        return None if namespace is None else str(namespace)


def read_manifests(path: str, stdin: TextIO) -> tuple[Manifest, ...]:
    """Return the objects of a file, of a folder's manifests by name, or of `stdin` for ``-``.

    Raises:
        ManifestError: where one is no manifest, or there is none at all.
    """
    found = tuple(
        manifest for source, text in _texts(path, stdin) for manifest in _objects(source, text)
    )
    if not found:
        raise ManifestError(f"{path}: there is no object in it")
    return found


def _texts(path: str, stdin: TextIO) -> Iterator[tuple[str, str]]:
    if path == STDIN:
        yield STDIN, stdin.read()
        return
    top = Path(path)
    if top.is_dir():
        files = sorted(each for each in top.iterdir() if each.suffix in SUFFIXES)
    else:
        files = [top]
    for file in files:
        try:
            yield str(file), file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
            raise ManifestError(f"{file}: {reason}") from error


def _objects(source: str, text: str) -> Iterator[Manifest]:
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise ManifestError(f"{source}: is no YAML: {' '.join(str(error).split())}") from error
    for number, document in enumerate(documents, start=1):
        if document is not None:
            yield from _unfolded(f"document {number} of {source}", source, document)


def _unfolded(where: str, source: str, document: object) -> Iterator[Manifest]:
    if not isinstance(document, dict):
        raise ManifestError(f"{where}: is no object, but {type(document).__name__}")
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str):
            raise ManifestError(f"{where}: has no {field}; e.g. apiVersion: v1 and kind: Pod")
    if document["kind"] == "List":
        for item in document.get("items") or ():
            yield from _unfolded(where, source, item)
        return
    metadata = document.get("metadata")
    named = isinstance(metadata, Mapping) and (metadata.get("name") or metadata.get("generateName"))
    if not named:
        raise ManifestError(f"{where}: the {document['kind']} has no metadata.name")
    yield Manifest(source=source, body=document)
