# SPDX-License-Identifier: Apache-2.0
"""One kubelet with its plugin: takes steps, and waits until it is done with each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import grpc

from gpuslice.runtime.kube.errors import KubeError, NotFoundError
from gpuslice.runtime.kube.resources import NODES, PODS
from gpuslice.sim.kubelet import checkpoint
from protos.podresources.v1 import api_pb2, api_pb2_grpc
from tests.cluster.harness.errors import TimedOutError
from tests.cluster.harness.waiting import wait_until
from tests.wire.sim.toyplugin import dial

from . import pods, steps
from .hosts import Host
from .plugin import TokenPlugin
from .steps import Create, Delete, Plan, Step

SETTLE_SECONDS = 40.0
"""A pod that isn't where it goes by then is compared as it is."""


class Side:
    """One of the two, for one sequence.

    Args:
        host: where its kubelet runs.
        sequence: the sequence's name; also of its resources, so that none meets another's.
        preference: the plugin's, of `plugin.PREFERENCES`.
    """

    def __init__(self, host: Host, *, sequence: str, preference: str) -> None:
        self.host = host
        self.sequence = sequence
        self.resource = f"example.com/tokens-{sequence}"
        self.fit = f"example.com/fit-{sequence}"
        self.names: dict[str, str] = {}
        """Pod name in the API server -> its group, of all pods that there ever were."""
        self.uids: dict[str, str] = {}
        """UID -> pod name in the API server."""
        self.called: dict[str, str] = {}
        """Name within the sequence -> pod name in the API server, as of the last observation."""
        self.gone: list[str] = []
        """The pods that the last step deleted."""
        self._preference = preference
        self._sick: tuple[str, ...] = ()
        self._plugin: TokenPlugin | None = None
        self._probes = 0
        self._created_at = 0
        self._channel = dial(host.root / "pod-resources" / "kubelet.sock")
        self.pod_resources = api_pb2_grpc.PodResourcesListerStub(self._channel)
        self._simple: Mapping[type[Step], Callable[[], None]] = {
            steps.Reboot: self._reboot,
            steps.StopPlugin: self._end_plugin,
            steps.StartPlugin: self._start_plugin,
            steps.RestartPlugin: self._restart_plugin,
            steps.HandOver: self._hand_over,
            steps.List: lambda: None,  # the observation that follows does it
        }

    def take(self, step: Step) -> None:
        """Take a step, and wait until kubelet has done its part."""
        self.gone = []
        if isinstance(step, Create):
            self._settle(self._create(step))
        elif isinstance(step, Delete):
            self._delete(step)
            self._wait_gone()
        elif isinstance(step, steps.RestartKubelet):
            self._restart(step)
        elif isinstance(step, steps.Sicken):
            self._sicken(step.sick)
        elif isinstance(step, steps.Publish):
            self._publish(step.amount)
        else:
            self._simple[type(step)]()

    def clean_up(self) -> None:
        """Delete what the sequence has left. The resources stay in the Node, unused."""
        self._stop_plugin()
        for pod in self._all_pods():
            self._remove(pod["metadata"]["name"], by_force=False)
        wait_until(
            f"all pods of the {self.host.title} {self.host.node} are gone",
            lambda: not self._all_pods(),
            timeout_seconds=60,
            seen=lambda: [(pod["metadata"], pod["status"]) for pod in self._all_pods()],
        )
        self._channel.close()

    def listed(self) -> list[dict[str, Any]]:
        """Return the sequence's pods in the API server."""
        return [pod for pod in self._all_pods() if pod["metadata"]["name"] in self.names]

    def _all_pods(self) -> list[dict[str, Any]]:
        selector = f"{pods.LABEL}={self.sequence}"
        found = self.host.client.list(PODS, namespace="default", labels=selector)
        return [dict(pod) for pod in found if pod["spec"].get("nodeName") == self.host.node]

    # Pods.

    def _create(self, step: Create) -> list[str]:
        names = [f"s{self.sequence}-{step.group}-{number}" for number in range(step.count)]
        # kubelet takes older pods first, by their creation's second: no two groups in the same.
        wait_until("a second has passed", lambda: int(time.time()) > self._created_at)
        for name in names:
            self.names[name] = step.group
            self.uids[self._bind(name, step.plan)] = name
        self._created_at = int(time.time())
        return names

    def _bind(self, name: str, plan: Plan) -> str:
        body = pods.manifest(
            name, plan, sequence=self.sequence, resource=self.resource, fit=self.fit
        )
        made = self.host.client.create(PODS, body)
        self.host.client.bind(made, self.host.node)
        return str(made["metadata"]["uid"])

    def _settle(self, names: Iterable[str]) -> None:
        """Wait until pods run, or have ended where they do that; time being up is no error."""
        left = set(names)

        def settled() -> bool:
            for pod in self._all_pods():
                phase = pod["status"].get("phase")
                is_short = pod["spec"]["restartPolicy"] == "Never"
                if phase in ("Failed", "Succeeded") or (phase == "Running" and not is_short):
                    left.discard(pod["metadata"]["name"])
            return not left

        self._try("pods settle", settled)

    def _delete(self, step: Delete) -> None:
        name = self.called[step.pod]
        self._remove(name, by_force=step.by_force)
        self.gone.append(name)

    def _remove(self, name: str, *, by_force: bool) -> None:
        grace_seconds = 0 if by_force else None
        with suppress(NotFoundError):
            self.host.client.delete(PODS, name, namespace="default", grace_seconds=grace_seconds)

    def _wait_gone(self) -> None:
        def gone() -> bool:
            there = {pod["metadata"]["name"] for pod in self._all_pods()}
            return there.isdisjoint(self.gone) and not any(self._is_known(x) for x in self.gone)

        self._try("pods are gone", gone)

    def _is_known(self, name: str) -> bool:
        return not isinstance(self.ask_about(name), str)

    # kubelet.

    def _restart(self, step: steps.RestartKubelet) -> None:
        self.host.stop_kubelet(is_hard=step.is_hard)
        self._stop_plugin()
        if step.loses_checkpoint:
            self._checkpoint_path.unlink(missing_ok=True)
        created: list[str] = []
        for change in step.meanwhile:
            if isinstance(change, Create):
                created += self._create(change)
            else:
                self._delete(change)
        self._come_back(created, plugin_returns=step.plugin_returns)

    def _reboot(self) -> None:
        self.host.stop_kubelet(is_hard=True)
        self._stop_plugin()
        self.host.power_off()
        self._come_back([], plugin_returns=False)

    def _come_back(self, created: Iterable[str], *, plugin_returns: bool) -> None:
        """Start kubelet; it has seen all of its pods when it runs the newest."""
        self._probes += 1
        probe = f"s{self.sequence}-{pods.PROBE}-{self._probes}"
        wait_until("a second has passed", lambda: int(time.time()) > self._created_at)
        self._bind(probe, Plan())
        self.host.start_kubelet()
        if plugin_returns:
            self._start_plugin()
        self._settle([probe, *created])
        self._remove(probe, by_force=True)
        self._settle(pod["metadata"]["name"] for pod in self.listed())
        self._try("pods that kubelet has let go have ended", self._none_is_ending)
        self._wait_gone()

    def _none_is_ending(self) -> bool:
        """Whether kubelet knows of all pods that run: it forgets before it writes their end."""
        return all(
            pod["status"].get("phase") != "Running" or self._is_known(pod["metadata"]["name"])
            for pod in self.listed()
        )

    @property
    def _checkpoint_path(self) -> Any:
        return self.host.root / "device-plugins" / checkpoint.FILE_NAME

    # The plugin.

    def _new_plugin(self) -> TokenPlugin:
        folder = self.host.root / "device-plugins"
        wait_until("kubelet is up", (folder / "kubelet.sock").exists, pause_seconds=0.01)
        return TokenPlugin(
            folder, resource=self.resource, preference=self._preference, sick=self._sick
        )

    def _start_plugin(self) -> None:
        self._plugin = self._new_plugin()
        self._plugin.register_when_possible()
        self._wait_tokens(self._well)

    @property
    def _well(self) -> tuple[str, ...]:
        return tuple(token for token in steps.TOKENS if token not in self._sick)

    def _stop_plugin(self) -> None:
        if self._plugin is not None:
            self._plugin.stop()
        self._plugin = None

    def _end_plugin(self) -> None:
        self._stop_plugin()
        self._wait_tokens(())

    def _restart_plugin(self) -> None:
        self._end_plugin()
        self._start_plugin()

    def _hand_over(self) -> None:
        assert self._plugin is not None
        before = self._checkpoint_path.stat()
        successor = self._new_plugin()
        successor.register_when_possible()
        # kubelet writes its checkpoint anew, as another file, for every list of devices.
        wait_until(
            "kubelet has the successor's list",
            lambda: self._checkpoint_path.stat().st_ino != before.st_ino,
        )
        self._plugin.stop()
        self._plugin = successor

    def _sicken(self, sick: tuple[str, ...]) -> None:
        assert self._plugin is not None
        self._sick = sick
        self._plugin.fall_sick(sick)
        self._wait_tokens(self._well)

    def _wait_tokens(self, ids: Iterable[str]) -> None:
        """Wait until kubelet counts just these tokens as healthy, and its Node says so too."""
        wanted = set(ids)
        self._try("kubelet counts the tokens", lambda: self.allocatable() == wanted)
        count = str(len(wanted))
        self._try(
            "its Node shows how many there are",
            lambda: self.node()["status"]["allocatable"].get(self.resource) == count,
        )

    def _publish(self, amount: int) -> None:
        """Patch capacity; allocatable follows with kubelet's next status, and so do its caches."""
        client, node = self.host.client, self.host.node
        patch = {"status": {"capacity": {self.fit: str(amount)}}}
        client.patch(NODES, node, patch, status=True)

        def followed() -> bool:
            allocatable = client.get(NODES, node)["status"]["allocatable"]
            return bool(allocatable.get(self.fit) == str(amount))

        self._try("allocatable follows capacity", followed)

    # PodResources.

    def ask_about(self, name: str) -> api_pb2.PodResources | str:
        """Return what Get says of a pod, or its error."""
        request = api_pb2.GetPodResourcesRequest(pod_name=name, pod_namespace="default")
        try:
            answer = self._patiently(lambda: self.pod_resources.Get(request, timeout=10))
        except grpc.RpcError as err:
            return f"{err.code().name}: {err.details()}"
        found: api_pb2.PodResources = answer.pod_resources
        return found

    def allocatable(self) -> set[str]:
        """Return the healthy tokens, in use or not; none while kubelet is away."""
        request = api_pb2.AllocatableResourcesRequest()
        try:
            answer = self._patiently(
                lambda: self.pod_resources.GetAllocatableResources(request, timeout=10)
            )
        except grpc.RpcError:
            return set()
        return {
            device_id
            for each in answer.devices
            if each.resource_name == self.resource
            for device_id in each.device_ids
        }

    def list_pods(self) -> list[api_pb2.PodResources]:
        """Return what List says."""
        request = api_pb2.ListPodResourcesRequest()
        return list(
            self._patiently(lambda: self.pod_resources.List(request, timeout=10)).pod_resources
        )

    @staticmethod
    def _patiently(call: Any) -> Any:
        """Call again where kubelet is asked too often, or is just coming up."""
        deadline = time.monotonic() + 15
        while True:
            try:
                return call()
            except grpc.RpcError as err:
                is_passing = err.code() in (
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    grpc.StatusCode.UNAVAILABLE,
                )
                if not is_passing or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def checkpoint(self) -> dict[str, Any]:
        """Return the checkpoint's data, empty where there is none."""
        try:
            return dict(json.loads(self._checkpoint_path.read_bytes())["Data"])
        except FileNotFoundError:
            return {}

    def node(self) -> dict[str, Any]:
        return dict(self.host.client.get(NODES, self.host.node))

    @staticmethod
    def _try(what: str, look: Any) -> None:
        """Wait for a condition; where it doesn't come, the comparison shows what is there."""

        def safely() -> bool:
            try:
                return bool(look())
            except KubeError:
                return False

        try:
            wait_until(what, safely, timeout_seconds=SETTLE_SECONDS, pause_seconds=0.1)
        except TimedOutError:
            return
