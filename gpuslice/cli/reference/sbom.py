# SPDX-License-Identifier: Apache-2.0
"""deploy/sbom.json: the Python packages of the image, in CycloneDX, from the lock.

Nothing in it depends on when or where it is made, so that it can be compared.
Source: cyclonedx.org, JSON schema 1.6.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from gpuslice.runtime import version

_LOCKED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_CLASSIFIER: Final = "License :: OSI Approved :: "
MAX_NAME: Final = 64
"""A longer text in the field License is the licence itself, not its name."""


def page(lock: Path) -> str:
    """Return the document.

    Args:
        lock: ``requirements/runtime.txt``; its packages must be installed, for their licences.
    """
    ours = _component("gpuslice", version.text(), kind="application")
    parts = list(_components(lock.read_text(encoding="utf-8")))
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([ours, parts]))}",
        "version": 1,
        "metadata": {"component": ours},
        "components": parts,
        "dependencies": [{"ref": ours["bom-ref"], "dependsOn": [each["purl"] for each in parts]}],
    }
    return json.dumps(content, indent=2) + "\n"


def _components(lock: str) -> Iterator[dict[str, Any]]:
    for name, locked in _LOCKED.findall(lock):
        yield _component(name, locked)


def _component(name: str, number: str, *, kind: str = "library") -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{number}"
    about = {"type": kind, "bom-ref": purl, "name": name, "version": number, "purl": purl}
    return about | {"licenses": [_licence(metadata.metadata(name))]}


def _licence(about: metadata.PackageMetadata) -> dict[str, Any]:
    fields: Any = about
    expression = fields.get("License-Expression")
    if expression:
        return {"expression": expression}
    named = str(fields.get("License") or "")
    classified = [
        each.removeprefix(_CLASSIFIER)
        for each in fields.get_all("Classifier") or ()
        if each.startswith(_CLASSIFIER)
    ]
    text = named if 0 < len(named) <= MAX_NAME else " or ".join(classified)
    return {"license": {"name": text or "unknown"}}
