# SPDX-License-Identifier: Apache-2.0
"""What containers use, as each node's device plugin measures it (setting `devicePlugin.watchUse`).

Read from the device plugins' metrics by the API server's proxy, so that it works wherever kubectl
does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from prometheus_client.parser import text_string_to_metric_families

from gpuslice.contract import pods
from gpuslice.runtime.kube.errors import KubeError
from gpuslice.runtime.kube.resources import PODS, Resource
from gpuslice.runtime.metrics import PREFIX

Json = Mapping[str, Any]
Used = Mapping[tuple[str, str, str, str], int]
"""MiB by namespace, pod, container and GPU."""

METRIC: Final = f"{PREFIX}container_memory_used_bytes"
AGENTS: Final = "app.kubernetes.io/part-of=gpuslice,app.kubernetes.io/component=device-plugin"
PORT_NAME: Final = "metrics"
SECONDS: Final = 5.0


class Pages(Protocol):
    """What is needed of an API server."""

    def list(self, resource: Resource, *, labels: str = "") -> Sequence[Json]:
        """Return objects of a kind."""

    def text(self, path: str, *, timeout_seconds: float) -> str:
        """Return the text at a path."""


def read(pages: Pages) -> tuple[dict[tuple[str, str, str, str], int], list[str]]:
    """Return what is used, and why some device plugins told nothing."""
    used: dict[tuple[str, str, str, str], int] = {}
    problems = []
    for agent in pages.list(PODS, labels=AGENTS):
        try:
            text = pages.text(_path(agent), timeout_seconds=SECONDS)
        except KubeError as error:
            problems.append(f"{pods.node_name(agent)}: {error.message}")
            continue
        found = dict(measured(text))
        used |= found
        if METRIC not in text:
            problems.append(f"{pods.node_name(agent)}: devicePlugin.watchUse is off")
    return used, problems


def _path(agent: Json) -> str:
    about = pods.meta_of(agent)
    port = next(
        (
            each["containerPort"]
            for container in pods.containers(agent)
            for each in container.get("ports") or ()
            if each.get("name") == PORT_NAME
        ),
        PORT_NAME,
    )
    where = PODS.path(namespace=about["namespace"])
    return f"{where}/{about['name']}:{port}/proxy/metrics"


def measured(text: str) -> Iterator[tuple[tuple[str, str, str, str], int]]:
    """Yield each container's MiB on a GPU, rounded down, from a page of metrics."""
    for family in text_string_to_metric_families(text):
        if family.name == METRIC:
            for sample in family.samples:
                at = sample.labels
                key = (at["namespace"], at["pod"], at["container"], at["gpu_uuid"])
                yield key, int(sample.value) // 2**20
