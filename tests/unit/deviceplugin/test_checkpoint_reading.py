# SPDX-License-Identifier: Apache-2.0
"""kubelet's checkpoint in all the forms it has had, and in those it should not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deviceplugin import checkpoint
from deviceplugin.checkpoint import UnreadableCheckpointError
from gpuslice.contract.names import SLICE_RESOURCE


def entry(uid: str, ids: Any, container: str = "main", resource: str = SLICE_RESOURCE) -> Any:
    return {
        "PodUID": uid,
        "ContainerName": container,
        "ResourceName": resource,
        "DeviceIDs": ids,
        "AllocResp": "",
    }


def written(folder: Path, *entries: Any) -> Path:
    path = folder / checkpoint.FILE_NAME
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 1}))
    return path


def test_tokens_are_gathered_over_numa_nodes_and_containers(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        entry("u1", {"-1": ["GPU-0::1"], "0": ["GPU-0::2"]}),
        entry("u1", {"-1": ["GPU-0::1", "GPU-0::3"]}, container="other"),
        entry("u1", {"-1": ["x"]}, resource="example.com/thing"),
        entry("u2", ["GPU-1::1"]),
        entry("u3", {"0": None}),
    )
    assert checkpoint.read(path, SLICE_RESOURCE) == {
        "u1": {"GPU-0::1", "GPU-0::2", "GPU-0::3"},
        "u2": {"GPU-1::1"},
        "u3": set(),
    }


def test_no_file_means_no_tokens(tmp_path: Path) -> None:
    assert checkpoint.read(tmp_path / "none", SLICE_RESOURCE) == {}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("{", id="torn"),
        pytest.param("[]", id="a list"),
        pytest.param('{"Data": {"PodDeviceEntries": [{}]}}', id="an empty entry"),
        pytest.param('{"Data": {"PodDeviceEntries": 3}}', id="a number"),
    ],
)
def test_another_form_is_an_error_of_its_own(tmp_path: Path, content: str) -> None:
    path = tmp_path / checkpoint.FILE_NAME
    path.write_text(content)
    with pytest.raises(UnreadableCheckpointError, match="not as kubelet writes it"):
        checkpoint.read(path, SLICE_RESOURCE)


def test_an_empty_checkpoint_has_no_entries(tmp_path: Path) -> None:
    path = tmp_path / checkpoint.FILE_NAME
    path.write_text('{"Data": {"PodDeviceEntries": null}}')
    assert checkpoint.read(path, SLICE_RESOURCE) == {}
