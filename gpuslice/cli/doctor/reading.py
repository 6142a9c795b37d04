# SPDX-License-Identifier: Apache-2.0
"""One look at a cluster. What the user may not read is left out, and said."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import yaml

from gpuslice.cli.doctor.snapshot import SettingsFile, Snapshot, Trial
from gpuslice.contract import names, pods
from gpuslice.runtime import settings
from gpuslice.runtime.kube import resources
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import (
    ForbiddenError,
    KubeError,
    NotFoundError,
    UnauthorizedError,
)
from gpuslice.runtime.kube.resources import Json, Resource
from gpuslice.runtime.settings import Settings

PART: Final = "app.kubernetes.io/part-of=gpuslice"
WEBHOOK: Final = f"{PART},app.kubernetes.io/component=webhook"
DEVICE_PLUGIN: Final = f"{PART},app.kubernetes.io/component=device-plugin"
SETTINGS_KEY: Final = "settings.yaml"
DEPLOYMENTS: Final = Resource(group="apps", plural="deployments", kind="Deployment")
DAEMON_SETS: Final = Resource(group="apps", plural="daemonsets", kind="DaemonSet")
TRIAL_POD: Final[Mapping[str, Any]] = {
    "metadata": {"name": "gpuslice-doctor", "annotations": {names.FRACTION: "0.5"}},
    "spec": {
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "main",
                "image": "gpuslice.dev/doctor",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    },
}
"""Passes Pod Security's strictest level: it must be refused by nobody but us."""


class Reader:
    """Reads a cluster's objects for one snapshot."""

    def __init__(self, client: KubeClient) -> None:
        """Read with a client."""
        self._client = client
        self._unreadable: list[tuple[str, str]] = []

    def look(self, namespace: str, *, tries_admission: bool = True) -> Snapshot:
        """Return what is there now.

        The ledgers are read before the Nodes: a Node that is behind is then really behind.

        Args:
            namespace: of the pod whose admission is tried.
            tries_admission: whether to send the API server a pod that it doesn't store.

        Raises:
            UnavailableError: where the API server doesn't answer.
        """
        gpu_nodes = self._list("gpu nodes", resources.GPU_NODES)
        config_maps = self._list("settings", resources.CONFIG_MAPS, PART)
        files = [
            _settings(each) for each in config_maps if SETTINGS_KEY in (each.get("data") or {})
        ]
        # The webhook's first: its settings are those that other checks go by.
        files.sort(key=lambda each: (len(each.namespace), each.namespace))
        known = next((each.settings for each in files if each.settings), Settings())
        secrets = self._list("secrets", resources.SECRETS, PART)
        trial = self._try(namespace) if tries_admission else None
        return Snapshot(
            now=datetime.now(UTC),
            version=self._version(),
            definitions=self._list("definitions", resources.CUSTOM_RESOURCE_DEFINITIONS),
            mutating=self._list("mutating", resources.MUTATING_WEBHOOKS, PART),
            validating=self._list("validating", resources.VALIDATING_WEBHOOKS, PART),
            policies=self._list("policies", resources.ADMISSION_POLICIES, PART),
            policy_bindings=self._list("policies", resources.ADMISSION_POLICY_BINDINGS, PART),
            deployments=self._list("deployments", DEPLOYMENTS, WEBHOOK),
            daemon_sets=self._list("daemon sets", DAEMON_SETS, DEVICE_PLUGIN),
            agents=self._list("agents", resources.PODS, DEVICE_PLUGIN),
            secrets=tuple(
                each for each in secrets if pods.meta_of(each)["name"] == known.webhook.secret_name
            ),
            settings_files=tuple(files),
            nodes=self._list("nodes", resources.NODES),
            gpu_nodes=gpu_nodes,
            gpu_shares=self._list("gpu shares", resources.GPU_SHARES),
            pods=self._list("pods", resources.PODS, names.SHARE_LABEL),
            trial=trial,
            unreadable=tuple(self._unreadable),
        )

    def _list(self, what: str, resource: Resource, labels: str = "") -> tuple[Json, ...]:
        try:
            return self._client.list(resource, labels=labels)
        except NotFoundError:
            return ()  # its kind isn't defined: the check of definitions says so
        except (ForbiddenError, UnauthorizedError) as error:
            self._unreadable.append((what, error.message))
            return ()

    def _version(self) -> str:
        return str(self._client.raw("/version").get("gitVersion") or "")

    def _try(self, namespace: str) -> Trial | None:
        try:
            made = self._client.create(resources.PODS, TRIAL_POD, namespace=namespace, dry_run=True)
        except ForbiddenError as error:
            if "admission webhook" not in error.message:
                self._unreadable.append(("admission", error.message))
                return None
            return Trial(error=error.message)
        except KubeError as error:
            return Trial(error=error.message)
        return Trial(pod=made)


def _settings(config_map: Json) -> SettingsFile:
    namespace = str(pods.meta_of(config_map)["namespace"])
    try:
        content = yaml.safe_load(config_map["data"][SETTINGS_KEY]) or {}
        if not isinstance(content, dict):
            return SettingsFile(
                namespace=namespace, settings=None, error="they are no mapping of settings"
            )
        chosen = settings.load(overrides=content)
    except (yaml.YAMLError, settings.SettingsError) as error:
        return SettingsFile(namespace=namespace, settings=None, error=str(error))
    return SettingsFile(namespace=namespace, settings=chosen)
