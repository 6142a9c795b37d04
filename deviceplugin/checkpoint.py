# SPDX-License-Identifier: Apache-2.0
"""kubelet's checkpoint: which pod, by uid, was given which tokens. Read, never written.

It is written after each container's allocation and has no entry's end: those of dead pods stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from gpuslice.contract.names import PodUid

FILE_NAME: Final = "kubelet_internal_checkpoint"


class UnreadableCheckpointError(Exception):
    """The file is there, but not as kubelet writes it."""


def read(path: Path, resource: str) -> dict[PodUid, frozenset[str]]:
    """Return the tokens of each pod in the file; none where there is no file.

    Raises:
        UnreadableCheckpointError: where it can't be read, or has another form.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UnreadableCheckpointError(f"{path}: {error.strerror}") from error
    try:
        return parse(json.loads(text), resource)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableCheckpointError(f"{path} is not as kubelet writes it: {error}") from error


def parse(content: Mapping[str, Any], resource: str) -> dict[PodUid, frozenset[str]]:
    """Return the tokens of each pod, over all its containers."""
    tokens: dict[PodUid, frozenset[str]] = {}
    for entry in (content.get("Data") or {}).get("PodDeviceEntries") or ():
        if entry["ResourceName"] != resource:
            continue
        uid = PodUid(entry["PodUID"])
        tokens[uid] = tokens.get(uid, frozenset()).union(_ids(entry["DeviceIDs"]))
    return tokens


def _ids(listed: Mapping[str, Iterable[str]] | Iterable[str] | None) -> Iterable[str]:
    """Return the ids, by NUMA node (since Kubernetes 1.20) or as one list (before)."""
    if isinstance(listed, Mapping):
        return (each for ids in listed.values() for each in ids or ())
    return listed or ()
