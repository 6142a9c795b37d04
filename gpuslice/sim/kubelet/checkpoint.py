# SPDX-License-Identifier: Apache-2.0
"""kubelet's checkpoint of device allocations: `kubelet_internal_checkpoint`, as 1.20 and later.

The checksum is our own: the real one hashes Go's dump of the data and can't be computed outside
Go, so nobody but kubelet may read it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuslice.sim.kubelet.holdings import Holding, Holdings

FILE_NAME: Final = "kubelet_internal_checkpoint"


class CheckpointError(Exception):
    """The file is none that kubelet wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What survives a kubelet."""

    holdings: Holdings
    registered: Mapping[str, tuple[str, ...]]
    """The healthy devices by resource."""


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the file's content."""
    data = {
        "PodDeviceEntries": [
            {
                "PodUID": each.pod_uid,
                "ContainerName": each.container,
                "ResourceName": each.resource,
                "DeviceIDs": {str(node): list(ids) for node, ids in each.ids_by_numa.items()},
                "AllocResp": base64.b64encode(each.response).decode(),
            }
            for each in checkpoint.holdings
        ],
        "RegisteredDevices": {
            resource: list(ids) for resource, ids in checkpoint.registered.items()
        },
    }
    return json.dumps({"Data": data, "Checksum": _checksum(data)}).encode()


def decode(content: bytes) -> Checkpoint:
    """Return what a file says.

    Raises:
        CheckpointError: where it is torn or its checksum doesn't match.
    """
    try:
        document = json.loads(content)
        data = document["Data"]
        if document["Checksum"] != _checksum(data):
            raise CheckpointError("checkpoint is corrupted")
        holdings = Holdings(
            tuple(
                Holding(
                    pod_uid=entry["PodUID"],
                    container=entry["ContainerName"],
                    resource=entry["ResourceName"],
                    ids_by_numa={int(node): tuple(ids) for node, ids in entry["DeviceIDs"].items()},
                    response=base64.b64decode(entry["AllocResp"], validate=True),
                )
                for entry in data["PodDeviceEntries"]
            )
        )
        registered = {resource: tuple(ids) for resource, ids in data["RegisteredDevices"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as err:
        raise CheckpointError(f"checkpoint can't be read: {err}") from err
    return Checkpoint(holdings=holdings, registered=registered)


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file so that a reader sees the old content or the new, never a part."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(encode(checkpoint))
    draft.replace(path)


def read(path: Path) -> Checkpoint | None:
    """Return what the file says, None where there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return decode(content)


def _checksum(data: Any) -> int:
    """Return the 32-bit FNV-1a hash of the data as compact JSON."""
    value = 0x811C9DC5
    for byte in json.dumps(data, separators=(",", ":"), sort_keys=True).encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value
