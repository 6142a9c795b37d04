# SPDX-License-Identifier: Apache-2.0
"""kubelet's choice of devices for a container, and the sets it chooses from.

Source: Kubernetes v1.36, pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate. No lock, no
clock, no I/O. The real code gives its lock away while it asks the plugin, so the choice comes in
two steps, `begin` and `finish`, with the question between them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from gpuslice.sim.kubelet.holdings import NO_NUMA, Holding, Holdings


class AllocationError(Exception):
    """A container can't have its devices; the text is the real kubelet's."""


class PanicError(Exception):
    """What makes the real kubelet crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as its plugin lists it."""

    id: str
    healthy: bool
    numa_nodes: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class Choice:
    """A choice under way: what has been taken, and what the plugin is to be asked."""

    pod_uid: str
    container: str
    resource: str
    required: int
    taken: set[str] = field(default_factory=set)
    candidates: frozenset[str] = frozenset()
    """The free devices to take the rest from; empty where the choice is made."""

    @property
    def needed(self) -> int:
        """How many devices are still missing."""
        return self.required - len(self.taken)

    @property
    def available(self) -> frozenset[str]:
        """GetPreferredAllocation's `available_deviceIDs`."""
        return self.candidates | self.taken

    @property
    def must_include(self) -> frozenset[str]:
        """GetPreferredAllocation's `must_include_deviceIDs`."""
        return frozenset(self.taken)


class Devices:
    """The devices of every registered resource, and who holds them."""

    def __init__(self, rng: Random) -> None:
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.in_use: dict[str, set[str]] = {}
        """Held, or reserved by an allocation under way."""
        self.holdings = Holdings()
        self._listed: dict[str, dict[str, Device]] = {}
        """What the plugins listed last. A plugin that goes away changes nothing here."""
        self._rng = rng

    def replace(self, resource: str, devices: Iterable[Device]) -> None:
        """Take a plugin's list in place of the one before."""
        by_id = {each.id: each for each in devices}
        self.healthy[resource] = {each.id for each in by_id.values() if each.healthy}
        self.unhealthy[resource] = set(by_id) - self.healthy[resource]
        self._listed[resource] = by_id

    def mark_unhealthy(self, resource: str) -> None:
        """Make all devices unhealthy: their plugin is away."""
        healthy = self.healthy.get(resource)
        if healthy is not None:
            self.healthy[resource] = set()
        self.unhealthy[resource] = self.unhealthy.get(resource, set()) | (healthy or set())

    def restore(self, holdings: Holdings, resources: Iterable[str]) -> None:
        """Begin as a kubelet that has read its checkpoint: no devices until plugins return."""
        self.holdings = holdings
        self.in_use = holdings.ids_by_resource()
        for resource in resources:
            self.healthy[resource] = set()
            self.unhealthy[resource] = set()

    def forget(self, resource: str) -> None:
        """Drop a resource whose plugin has been away for too long."""
        self.healthy.pop(resource, None)
        self.unhealthy.pop(resource, None)

    def is_known(self, resource: str) -> bool:
        """Whether a plugin registered the resource, or devices of it are held."""
        return resource in self.healthy or resource in self.in_use

    def numa_nodes(self, resource: str, device_id: str) -> tuple[int, ...]:
        """Return a device's NUMA nodes, none where it has no topology."""
        device = self._listed.get(resource, {}).get(device_id)
        return device.numa_nodes if device else ()

    def health(self, resource: str, device_id: str) -> str:
        """Return a device's health as a pod's status shows it: as its plugin listed it last.

        One that no plugin has listed yet, after a restart of kubelet, counts as healthy.
        """
        device = self._listed.get(resource, {}).get(device_id)
        return "Unhealthy" if device is not None and not device.healthy else "Healthy"

    def release_all_but(self, pod_uids: Container[str]) -> None:
        """Free the devices of pods that are not among `pod_uids`.

        The sets in use are then computed afresh from the holdings, which forgets what an
        allocation under way has reserved: kubernetes/kubernetes#137534, up to 1.37.
        """
        if self.holdings.drop_all_but(pod_uids):
            self.reset_in_use()

    def reset_in_use(self) -> None:
        """Count as in use only what is held."""
        self.in_use = self.holdings.ids_by_resource()

    def begin(
        self,
        *,
        pod_uid: str,
        container: str,
        resource: str,
        required: int,
        reusable: Iterable[str] = (),
        already_running: bool = False,
    ) -> Choice | None:
        """Start the choice of a container's devices; None where nothing is to be done.

        Args:
            pod_uid: the pod.
            container: the container's name.
            resource: the resource, known.
            required: how many devices it asks for.
            reusable: devices of the pod's own init containers, taken first and without a question.
            already_running: the container ran when kubelet started, and kubelet hasn't seen all
                pods yet: it is accepted as it is.

        Raises:
            AllocationError: where it can't have them.
        """
        held = self.holdings.ids_of(pod_uid, container, resource)
        if held is not None and required != len(held):
            raise AllocationError(
                f'pod "{pod_uid}" container "{container}" changed request for resource '
                f'"{resource}" from {len(held)} to {required}'
            )
        if already_running:
            return None
        self._check_health(resource, held or frozenset())
        if held is not None or required == 0:
            return None
        choice = Choice(pod_uid=pod_uid, container=container, resource=resource, required=required)
        self._take(choice, reusable)
        if choice.needed == 0:
            return choice
        free = self.healthy[resource] - self.in_use.get(resource, set())
        if len(free) < choice.needed:
            raise AllocationError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {choice.needed}, Available: {len(free)}"
            )
        choice.candidates = frozenset(free)
        return choice

    def finish(self, choice: Choice, preferred: Iterable[str]) -> frozenset[str]:
        """Take the rest: of what the plugin prefers, as far as it is free, then at random."""
        self._take(choice, choice.candidates.intersection(preferred))
        self._take(choice, choice.candidates)
        return frozenset(choice.taken)

    def hold(self, choice: Choice, response: bytes) -> None:
        """Give the chosen devices to the container.

        Raises:
            PanicError: where one of them has vanished from its plugin's list meanwhile.
        """
        known = self._listed.get(choice.resource, {})
        ids_by_numa: dict[int, tuple[str, ...]] = {}
        for device_id in sorted(choice.taken):
            if device_id not in known:
                raise PanicError(f"device {device_id} is no longer listed: nil dereference")
            for node in known[device_id].numa_nodes or (NO_NUMA,):
                ids_by_numa[node] = (*ids_by_numa.get(node, ()), device_id)
        self.holdings.insert(
            Holding(
                pod_uid=choice.pod_uid,
                container=choice.container,
                resource=choice.resource,
                ids_by_numa=ids_by_numa,
                response=response,
            )
        )

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return capacity and allocatable of each resource that has a plugin."""
        counts = {}
        for resource in sorted(self.healthy.keys() | self.unhealthy.keys()):
            healthy = len(self.healthy.get(resource, ()))
            counts[resource] = (healthy + len(self.unhealthy.get(resource, ())), healthy)
        return counts

    def allocatable(self) -> Mapping[str, tuple[str, ...]]:
        """Return the healthy devices, in use or not."""
        return {resource: tuple(sorted(ids)) for resource, ids in self.healthy.items()}

    def _check_health(self, resource: str, held: frozenset[str]) -> None:
        healthy = self.healthy.get(resource)
        if healthy is None:
            raise AllocationError(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise AllocationError(
                f"no healthy devices present; cannot allocate unhealthy devices {resource}"
            )
        if not held <= healthy:
            raise AllocationError(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {resource}"
            )

    def _take(self, choice: Choice, ids: Iterable[str]) -> None:
        """Take from `ids` in random order until nothing is missing."""
        left = sorted(set(ids) - choice.taken)
        chosen = self._rng.sample(left, min(choice.needed, len(left)))
        choice.taken.update(chosen)
        self.in_use.setdefault(choice.resource, set()).update(chosen)
