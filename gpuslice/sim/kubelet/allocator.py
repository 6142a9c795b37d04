# SPDX-License-Identifier: Apache-2.0
"""kubelet's device manager: plugins come and go, containers get devices and keep them.

Source: Kubernetes v1.36, pkg/kubelet/cm/devicemanager/manager.go. One lock guards the state; it
is never held while a plugin is asked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random

from gpuslice.contract import pods
from gpuslice.contract.pods import Json
from gpuslice.sim.kubelet import checkpoint
from gpuslice.sim.kubelet.devices import AllocationError, Choice, Device, Devices
from gpuslice.sim.kubelet.endpoints import Endpoint, PluginError
from gpuslice.sim.kubelet.quirks import Quirks
from protos.deviceplugin.v1beta1 import api_pb2

log = logging.getLogger(__name__)

ActivePods = Callable[[], Iterable[str]]
"""Returns the UIDs of the pods that kubelet counts as active."""


class DeviceAllocator:
    """The devices of one kubelet's life: a restart makes a new one from the checkpoint."""

    def __init__(
        self,
        *,
        checkpoint_file: Path,
        active_pods: ActivePods,
        rng: Random,
        quirks: Quirks,
        on_change: Callable[[], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._file = checkpoint_file
        self._active_pods = active_pods
        self._quirks = quirks
        self._on_change = on_change
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._devices = Devices(rng)
        self._endpoints: dict[str, Endpoint | None] = {}
        """The plugin of each resource; None for one that a checkpoint remembers."""
        self._stopped_at: dict[str, float] = {}
        self._reusable: tuple[str, dict[str, set[str]]] = ("", {})
        """The pod being admitted, and its plain init containers' devices by resource."""
        self._running_at_start: frozenset[tuple[str, str]] = frozenset()
        self._sources_ready = True
        self._closed = False

    def start(self, running: Iterable[tuple[str, str]]) -> None:
        """Read the checkpoint; `running` are the (pod UID, container) that run already."""
        self._running_at_start = frozenset(running)
        self._sources_ready = False
        try:
            saved = checkpoint.read(self._file)
        except checkpoint.CheckpointError as err:
            log.warning("continuing without the checkpoint: %s", err)
            saved = None
        if saved is not None:
            with self._lock:
                self._devices.restore(saved.holdings, saved.registered)
                for resource in saved.registered:
                    self._endpoints[resource] = None
                    self._stopped_at[resource] = self._monotonic()

    def sources_are_ready(self) -> None:
        """All pods of the API server have been seen once."""
        self._sources_ready = True

    def close(self) -> None:
        """Write nothing any more: kubelet has stopped."""
        with self._lock:
            self._closed = True

    def connect(self, endpoint: Endpoint) -> None:
        """Take a plugin that has just answered; an earlier one of its resource is forgotten."""
        with self._lock:
            self._endpoints[endpoint.resource] = endpoint
            self._stopped_at.pop(endpoint.resource, None)

    def disconnect(self, resource: str) -> None:
        """Take note that the plugin of a resource is away."""
        with self._lock:
            if self._closed or resource not in self._endpoints:
                return
            self._devices.mark_unhealthy(resource)
            now = self._monotonic()
            self._stopped_at[resource] = now
            endpoint = self._endpoints[resource]
            if endpoint is not None:
                endpoint.stopped_at = now
        self._on_change()

    def take_list(self, resource: str, devices: tuple[Device, ...]) -> None:
        """Take a plugin's list of devices."""
        with self._lock:
            if self._closed:
                return
            self._devices.replace(resource, devices)
            self._write()
        self._on_change()

    def counts(self) -> tuple[dict[str, tuple[int, int]], frozenset[str]]:
        """Return (capacity, allocatable) by resource, and the resources given up just now."""
        with self._lock:
            now = self._monotonic()
            expired = {
                resource
                for resource, at in self._stopped_at.items()
                if now - at > self._quirks.endpoint_grace_seconds
            }
            # A list without an endpoint comes from a stream that outlived its plugin's removal.
            expired |= self._devices.counts().keys() - self._endpoints.keys()
            for resource in expired:
                self._endpoints.pop(resource, None)
                self._stopped_at.pop(resource, None)
                self._devices.forget(resource)
            if expired:
                self._write()
            return self._devices.counts(), frozenset(expired)

    def allocatable(self) -> Mapping[str, tuple[str, ...]]:
        """Return the healthy devices by resource, in use or not."""
        with self._lock:
            return self._devices.allocatable()

    def numa_nodes(self, resource: str, device_id: str) -> tuple[int, ...]:
        """Return a device's NUMA nodes."""
        with self._lock:
            return self._devices.numa_nodes(resource, device_id)

    def in_use(self) -> dict[str, int]:
        """Return how many devices of each resource are in use."""
        with self._lock:
            return {resource: len(ids) for resource, ids in self._devices.in_use.items()}

    def holds_any(self, pod_uid: str) -> bool:
        """Whether a pod holds devices."""
        with self._lock:
            return pod_uid in self._devices.holdings.pods()

    def holdings(self) -> dict[str, dict[str, dict[str, frozenset[str]]]]:
        """Return pod UID -> container -> resource -> ids, of pods long gone too."""
        found: dict[str, dict[str, dict[str, frozenset[str]]]] = {}
        with self._lock:
            for each in self._devices.holdings:
                by_container = found.setdefault(each.pod_uid, {})
                by_container.setdefault(each.container, {})[each.resource] = each.ids
        return found

    def responses(
        self, pod_uid: str, container: str
    ) -> tuple[api_pb2.ContainerAllocateResponse, ...]:
        """Return what the plugins answered for a container, one for each resource."""
        with self._lock:
            held = self._devices.holdings.of_container(pod_uid, container)
        return tuple(api_pb2.ContainerAllocateResponse.FromString(each.response) for each in held)

    def health(self, pod_uid: str, container: str) -> dict[str, dict[str, str]]:
        """Return the health of a container's devices: resource -> id -> health."""
        with self._lock:
            return {
                each.resource: {
                    device_id: self._devices.health(each.resource, device_id)
                    for device_id in sorted(each.ids)
                }
                for each in self._devices.holdings.of_container(pod_uid, container)
            }

    def update(self) -> None:
        """Free the devices of pods that are no longer active (UpdateAllocatedDevices)."""
        if not self._sources_ready:
            return
        active = set(self._active_pods())
        with self._lock:
            self._devices.release_all_but(active)

    def allocate(self, pod: Json) -> None:
        """Give every container of an active pod its devices, init containers first.

        Raises:
            AllocationError: where one can't have them. What earlier ones got stays the pod's
                until it is no longer active.
            PanicError: where the real kubelet would crash.
        """
        uid = str(pods.meta_of(pod).get("uid"))
        if self._reusable[0] != uid:
            self._reusable = (uid, {})
        reusable = self._reusable[1]
        plain_init = {
            each.get("name")
            for each in pods.spec_of(pod).get("initContainers") or ()
            if each.get("restartPolicy") != "Always"
        }
        for container in pods.containers(pod):
            name = str(container.get("name"))
            self._allocate_container(uid, container, reusable)
            for resource, ids in self.holdings().get(uid, {}).get(name, {}).items():
                if name in plain_init:
                    reusable.setdefault(resource, set()).update(ids)
                else:
                    reusable.setdefault(resource, set()).difference_update(ids)

    def prepare_start(self, pod: Json, container: Json) -> None:
        """Call PreStartContainer where the plugin wants it, before every start of a container.

        Raises:
            PluginError: where the container can't start now; kubelet tries again.
        """
        uid, name = str(pods.meta_of(pod).get("uid")), str(container.get("name"))
        for resource in pods.resources(container, "limits"):
            with self._lock:
                if not self._devices.is_known(resource) or not pods.asked_of(container, resource):
                    continue
                if resource not in self._endpoints:
                    raise PluginError(
                        f"endpoint not found in cache for a registered resource: {resource}"
                    )
                endpoint = self._endpoints[resource]
                ids = self._devices.holdings.ids_of(uid, name, resource)
            if endpoint is None or not endpoint.options.pre_start_required:
                continue
            if ids is None:
                raise PluginError(
                    f'no devices found allocated in local cache for pod "{uid}", '
                    f'container "{name}", resource "{resource}"'
                )
            try:
                endpoint.pre_start(ids)
            except PluginError as err:
                raise PluginError(
                    f"device plugin PreStartContainer rpc failed with err: {err}"
                ) from err

    def _allocate_container(
        self, uid: str, container: Json, reusable: Mapping[str, set[str]]
    ) -> None:
        name = str(container.get("name"))
        updated = False
        for resource in sorted(pods.resources(container, "limits")):
            with self._lock:
                if not self._devices.is_known(resource):
                    continue
            if not updated:
                self.update()
                updated = True
            choice = self._choose(uid, name, resource, container, reusable.get(resource, set()))
            if choice is None or not choice.taken:
                continue
            self._tell_plugin(choice)
            with self._lock:
                self._write()

    def _choose(
        self, uid: str, name: str, resource: str, container: Json, reusable: set[str]
    ) -> Choice | None:
        running = not self._sources_ready and (uid, name) in self._running_at_start
        with self._lock:
            choice = self._devices.begin(
                pod_uid=uid,
                container=name,
                resource=resource,
                required=pods.asked_of(container, resource),
                reusable=reusable,
                already_running=running,
            )
            if choice is None or choice.needed == 0:
                return choice
            endpoint = self._endpoint(resource)
        preferred: tuple[str, ...] = ()
        if endpoint is not None and endpoint.options.get_preferred_allocation_available:
            try:
                preferred = endpoint.preferred(
                    choice.available, choice.must_include, choice.required
                )
            except PluginError as err:
                raise AllocationError(
                    f"device plugin GetPreferredAllocation rpc failed with err: {err}"
                ) from err
        with self._lock:
            self._devices.finish(choice, preferred)
        return choice

    def _endpoint(self, resource: str) -> Endpoint | None:
        if resource not in self._endpoints:
            raise AllocationError(
                f"endpoint not found in cache for a registered resource: {resource}"
            )
        return self._endpoints[resource]

    def _tell_plugin(self, choice: Choice) -> None:
        """Call Allocate. After an error the choice is undone; after an empty answer it isn't."""
        try:
            answer = self._running_endpoint(choice.resource).allocate(choice.taken)
        except PluginError as err:
            with self._lock:
                self._devices.reset_in_use()
            raise AllocationError(str(err)) from err
        if not answer.container_responses:
            raise AllocationError(f"no containers return in allocation response {answer}")
        with self._lock:
            self._devices.hold(choice, answer.container_responses[0].SerializeToString())

    def _running_endpoint(self, resource: str) -> Endpoint:
        with self._lock:
            if resource not in self._endpoints:
                raise PluginError(f"unknown Device Plugin {resource}")
            endpoint = self._endpoints[resource]
        if endpoint is None:
            raise PluginError(f"endpoint {resource} has been stopped")
        return endpoint

    def _write(self) -> None:
        if self._closed:
            return
        checkpoint.write(
            self._file,
            checkpoint.Checkpoint(
                holdings=self._devices.holdings, registered=self._devices.allocatable()
            ),
        )
