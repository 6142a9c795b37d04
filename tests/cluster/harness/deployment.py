# SPDX-License-Identifier: Apache-2.0
"""The product on the cluster: deploy/install.yaml, applied as users do, with few differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from .client import Json
from .errors import HarnessError
from .paths import REPOSITORY

INSTALL = REPOSITORY / "deploy" / "install.yaml"
GPU_NODE_LABEL = "nvidia.com/gpu.present"
"""GPU feature discovery puts it on nodes with GPUs; here the harness does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place where what is deployed here isn't what users deploy, and why."""

    why: str
    kind: str
    name: str
    change: Callable[[Json], None]
    """Changes the object."""


DIFFERENCES: tuple[Difference, ...] = ()
"""All of them, for every test. None is needed: images come from a mirror of every registry, the
driver lies where the GPU operator puts it, and Services, credentials and RBAC work."""


def settings(text: str, *, why: str) -> tuple[Difference, ...]:
    """The differences that give both halves other settings, e.g. `adoptSchedulers`."""

    def change(config_map: Json) -> None:
        config_map["data"]["settings.yaml"] = text

    return (Difference(why=why, kind="ConfigMap", name="gpuslice-settings", change=change),)


def adopted_kai() -> tuple[Difference, ...]:
    """The setting under which pods written for KAI Scheduler are the default scheduler's."""
    text = (REPOSITORY / "deploy" / "examples" / "settings" / "adopt-kai.yaml").read_text()
    return settings(text, why="the sharing manifests name schedulerName: kai-scheduler")


def read(path: Path = INSTALL) -> list[Json]:
    """The objects of a manifest file.

    Raises:
        HarnessError: there is no such file.
    """
    try:
        return [found for found in yaml.safe_load_all(path.read_text()) if found]
    except FileNotFoundError as err:
        raise HarnessError(f"{path} is not there: nothing to deploy") from err


def differing(objects: Iterable[Json], differences: Sequence[Difference]) -> list[Json]:
    """Apply differences to objects, in place.

    Raises:
        HarnessError: a difference is about an object that isn't there.
    """
    found = list(objects)
    for difference in differences:
        matching = [
            each
            for each in found
            if (each["kind"], each["metadata"]["name"]) == (difference.kind, difference.name)
        ]
        if not matching:
            raise HarnessError(
                f"no {difference.kind} {difference.name} in what is deployed, "
                f"for the difference: {difference.why}"
            )
        for each in matching:
            difference.change(each)
    return found


def workloads(objects: Iterable[Json]) -> list[Json]:
    return [each for each in objects if each["kind"] in {"Deployment", "DaemonSet"}]


def images(objects: Iterable[Json]) -> Iterator[str]:
    """The full names of the images that workloads ask for, each once."""
    seen = set()
    for workload in workloads(objects):
        spec = workload["spec"]["template"]["spec"]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            seen.add(full_image_name(container["image"]))
    yield from sorted(seen)


def full_image_name(image: str) -> str:
    """What runtimes make of a short name: `ubuntu` is `docker.io/library/ubuntu:latest`.

    Source: github.com/distribution/reference, normalize.go.
    """
    first, slash, rest = image.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        image = f"docker.io/{image}" if slash else f"docker.io/library/{image}"
    else:
        image = f"{first}/{rest}"
    has_tag = ":" in image.rpartition("/")[2]
    return image if has_tag else f"{image}:latest"
