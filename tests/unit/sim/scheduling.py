# SPDX-License-Identifier: Apache-2.0
"""Pods and nodes for the scheduler's tests."""

from __future__ import annotations

from typing import Any

from gpuslice.sim.scheduler.views import Node, Pod, node_of, pod_of

Json = dict[str, Any]


def build_node(name: str, *, labels: Json | None = None, **allocatable: str) -> Json:
    room = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    given = {key.replace("__", "/").replace("_", "-"): text for key, text in allocatable.items()}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {},
        "status": {"allocatable": room | given},
    }


def node(name: str, *, labels: Json | None = None, spec: Json | None = None, **room: str) -> Node:
    return node_of(build_node(name, labels=labels, **room) | {"spec": spec or {}})


def build_pod(name: str, *, spec: Json | None = None, **requests: str) -> Json:
    asked = {key.replace("__", "/").replace("_", "-"): text for key, text in requests.items()}
    container = {"name": "main", "resources": {"limits": asked, "requests": asked}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [container]} | (spec or {}),
    }


def pod(name: str = "p", *, spec: Json | None = None, **requests: str) -> Pod:
    return pod_of(build_pod(name, spec=spec, **requests))
