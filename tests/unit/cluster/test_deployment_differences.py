# SPDX-License-Identifier: Apache-2.0
"""What is deployed on the cluster, and what of it differs from what users deploy."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import deployment, prerequisites
from tests.cluster.harness.errors import HarnessError

WORKLOAD: dict[str, Any] = {
    "kind": "DaemonSet",
    "metadata": {"name": "plugin"},
    "spec": {
        "template": {
            "spec": {
                "initContainers": [{"image": "busybox"}],
                "containers": [{"image": "gpuslice:1"}, {"image": "ghcr.io/a/b"}],
            }
        }
    },
}
SETTINGS: dict[str, Any] = {
    "kind": "ConfigMap",
    "metadata": {"name": "gpuslice-settings"},
    "data": {"settings.yaml": "{}"},
}


@pytest.mark.parametrize(
    ("short", "full"),
    [
        pytest.param("ubuntu", "docker.io/library/ubuntu:latest", id="official"),
        pytest.param("gpuslice:0.1.0", "docker.io/library/gpuslice:0.1.0", id="tag"),
        pytest.param("me/app", "docker.io/me/app:latest", id="user"),
        pytest.param("ghcr.io/me/app:1", "ghcr.io/me/app:1", id="registry"),
        pytest.param("localhost/app", "localhost/app:latest", id="localhost"),
        pytest.param("reg:5000/app", "reg:5000/app:latest", id="port"),
    ],
)
def test_short_image_names_mean_docker_hub(short: str, full: str) -> None:
    assert deployment.full_image_name(short) == full


def test_images_of_all_containers_are_found() -> None:
    assert list(deployment.images([WORKLOAD, SETTINGS])) == [
        "docker.io/library/busybox:latest",
        "docker.io/library/gpuslice:1",
        "ghcr.io/a/b:latest",
    ]


def test_settings_of_a_test_replace_those_deployed() -> None:
    differences = deployment.settings("slicesPerGpu: 10\n", why="a small GPU")
    (changed,) = deployment.differing([copy.deepcopy(SETTINGS)], differences)
    assert changed["data"] == {"settings.yaml": "slicesPerGpu: 10\n"}


def test_a_difference_to_nothing_is_refused() -> None:
    with pytest.raises(HarnessError, match=r"no ConfigMap gpuslice-settings .* a small GPU"):
        deployment.differing([WORKLOAD], deployment.settings("", why="a small GPU"))


def test_missing_manifests_are_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="nothing to deploy"):
        deployment.read(tmp_path / "install.yaml")


def test_a_machine_with_everything_lacks_nothing() -> None:
    assert prerequisites.missing(find=lambda program: program, euid=0) == []


def test_each_thing_that_a_machine_lacks_has_one_line() -> None:
    lines = prerequisites.missing(
        find=lambda program: None if program in {"runc", "mmdebstrap"} else program, euid=1000
    )
    assert [line.split(":")[0] for line in lines] == [
        "not root",
        "Debian package mmdebstrap is not installed (mmdebstrap not found)",
        "Debian package runc is not installed (runc not found)",
    ]
