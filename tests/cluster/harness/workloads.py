# SPDX-License-Identifier: Apache-2.0
"""Small pods for tests, and how to wait for them."""

from __future__ import annotations

from collections.abc import Sequence

from .client import Api, Json, condition, pod_path


def pod(
    name: str,
    *,
    command: Sequence[str] = ("sleep", "infinity"),
    node: str = "",
    namespace: str = "default",
    labels: dict[str, str] | None = None,
    spec: Json | None = None,
) -> Json:
    """A pod of the small `ubuntu`, which a node pulls from the cluster's registry.

    Args:
        name: its name, and its container's.
        command: what the container runs.
        node: the node it must go to, by a node selector; any where none is given.
        namespace: where it is created.
        labels: its labels.
        spec: what to add to its spec.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": name, "image": "ubuntu", "command": list(command)}],
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            **(spec or {}),
        },
    }


def create_running(api: Api, manifest: Json, *, timeout_seconds: float = 60) -> Json:
    """Create a pod, and return it as it is when it is Ready."""
    namespace = manifest["metadata"]["namespace"]
    created = api.create(pod_path(namespace=namespace), manifest)
    return wait_running(api, created, timeout_seconds=timeout_seconds)


def wait_running(api: Api, pod: Json, *, timeout_seconds: float = 60) -> Json:
    """Wait until a pod is Ready, and return it."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    return api.wait(
        f"pod {namespace}/{name} is Ready",
        pod_path(name, namespace),
        lambda found: condition(found, "Ready"),
        timeout_seconds=timeout_seconds,
    )


def container(pod: Json) -> Json:
    """The status of a pod's only container."""
    status: Json = pod["status"]["containerStatuses"][0]
    return status


def delete_now(api: Api, pod: Json) -> None:
    """Delete a pod without grace, and wait until kubelet has let it go."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    path = pod_path(name, namespace)
    if api.find(path) is not None:
        # One second, not none: that would be a force deletion, which doesn't wait for kubelet.
        api.delete(path, grace_seconds=1)
        api.wait_gone(path)
