# SPDX-License-Identifier: Apache-2.0
"""The half of a kubelet that a device plugin sees, usable without an API server.

Plugins register with it over real gRPC. Pods are handed to it: `admit`, then `end_container` for
those that end (the pod still holds their devices), then `release`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Final

from gpuslice.contract import pods
from gpuslice.contract.pods import Json
from gpuslice.sim.kubelet import admission, checkpoint, containers
from gpuslice.sim.kubelet.admission import Rejection
from gpuslice.sim.kubelet.allocator import DeviceAllocator
from gpuslice.sim.kubelet.devices import AllocationError
from gpuslice.sim.kubelet.podresources import PodResourcesServer
from gpuslice.sim.kubelet.quirks import Quirks
from gpuslice.sim.kubelet.registration import RegistrationServer
from protos.deviceplugin.v1beta1 import api_pb2

PLUGIN_FOLDER: Final = "device-plugins"
POD_RESOURCES_FOLDER: Final = "pod-resources"

Holdings = dict[str, dict[str, dict[str, frozenset[str]]]]
"""Pod UID -> container -> resource -> device ids."""


class BareKubelet:
    """A kubelet's device half. `root` stands for /var/lib/kubelet."""

    def __init__(
        self,
        root: Path,
        *,
        rng: Random | None = None,
        quirks: Quirks | None = None,
        on_change: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root = root
        self.plugin_folder = root / PLUGIN_FOLDER
        self.pod_resources_socket = root / POD_RESOURCES_FOLDER / "kubelet.sock"
        self.quirks = quirks or Quirks()
        self._rng = rng or Random()  # noqa: S311 - no secret
        self._on_change = on_change
        """Called after each change of the devices or their health."""
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._admission = threading.Lock()
        """kubelet admits one pod at a time."""
        self._pods: dict[str, Json] = {}
        """The active pods by UID, in the order of their admission."""
        self._running: set[tuple[str, str]] = set()
        """What the container runtime runs: it outlives kubelet, not the node."""
        self._allocator: DeviceAllocator
        self._registration: RegistrationServer
        self._pod_resources: PodResourcesServer
        self._make()

    def start(self, *, ready: bool = True) -> None:
        """Read the checkpoint, remove the sockets of the plugin folder, and serve.

        Args:
            ready: whether all pods are known. While they aren't, containers that run already are
                accepted as they are: see `sources_are_ready`.
        """
        self.plugin_folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            running = frozenset(self._running)
        self._allocator.start(running)
        if ready:
            self._allocator.sources_are_ready()
        self._pod_resources.start()
        self._registration.start()

    def stop(self) -> None:
        """End as a kubelet that is killed: sockets and connections are gone, pods run on."""
        self._allocator.close()
        self._registration.stop()
        self._pod_resources.stop()
        with self._lock:
            self._pods.clear()
        self._make()

    def restart(self) -> dict[str, Rejection | None]:
        """Stop, start, and admit all pods again, in random order.

        Returns:
            The verdict on each pod by UID. A pod that was refused is let go at once.
        """
        with self._lock:
            known = list(self._pods.values())
        self.stop()
        self.start(ready=False)
        self._rng.shuffle(known)
        verdicts = {_uid(pod): self.admit(pod) for pod in known}
        self.sources_are_ready()
        return verdicts

    def reboot(self) -> dict[str, Rejection | None]:
        """Restart with nothing running: pods with devices are refused until plugins return."""
        self.power_off()
        return self.restart()

    def power_off(self) -> None:
        """End everything that runs: the node reboots."""
        with self._lock:
            self._running.clear()

    def sources_are_ready(self) -> None:
        """All pods have been admitted once since the start."""
        self._allocator.sources_are_ready()

    def has_checkpoint(self) -> bool:
        """Whether a checkpoint file exists."""
        return (self.plugin_folder / checkpoint.FILE_NAME).exists()

    def admit(
        self,
        pod: Json,
        *,
        node: Callable[[], Json] | None = None,
        fresh_node: Callable[[], Json] | None = None,
        run: bool = True,
    ) -> Rejection | None:
        """Decide about a pod: its devices first, then its node.

        Args:
            pod: the pod, with ``metadata.uid``.
            node: returns kubelet's copy of the Node, read after the devices are given out; None
                leaves the check of the node out.
            fresh_node: returns the Node as it is now, asked where only its labels refuse the pod:
                labels alone get a second look.
            run: whether its containers count as running from now on.

        Returns:
            Why it is refused; None where it is admitted.
        """
        uid = _uid(pod)
        with self._admission:
            with self._lock:
                others = [each for each in self._pods.values() if _uid(each) != uid]
                self._pods[uid] = pod
            try:
                self._allocator.allocate(pod)
            except AllocationError as err:
                return self._refuse(
                    uid, admission.UNEXPECTED, f"Allocate failed due to {err}, which is unexpected"
                )
            rejection = None
            if node is not None:
                rejection = self._check(pod, node(), others)
                by_labels = rejection is not None and rejection.reason == admission.NODE_AFFINITY
                if by_labels and fresh_node is not None:
                    rejection = self._check(pod, fresh_node(), others)
            if rejection is not None:
                return self._refuse(uid, rejection.reason, rejection.message)
            if run:
                for name in _long_running(pod):
                    self.container_started(uid, name)
            return None

    def _check(self, pod: Json, node: Json, others: Iterable[Json]) -> Rejection | None:
        return admission.check(
            pod,
            node=node,
            others=others,
            in_use=self._allocator.in_use(),
            holds_any=self._allocator.holds_any(_uid(pod)),
        )

    def _refuse(self, uid: str, reason: str, message: str) -> Rejection:
        """Leave a pod's devices to the next allocation, which finds that it isn't active."""
        self.release(uid)
        return Rejection(reason=reason, message=message)

    def container_started(self, uid: str, container: str) -> None:
        """A container runs."""
        with self._lock:
            self._running.add((uid, container))

    def end_container(self, uid: str, container: str) -> None:
        """A container has ended; its devices stay the pod's."""
        with self._lock:
            self._running.discard((uid, container))

    def release(self, uid: str) -> None:
        """Let a pod go: PodResources no longer knows it, its devices go to whoever asks next."""
        with self._lock:
            self._pods.pop(uid, None)
            self._running = {each for each in self._running if each[0] != uid}

    def release_delay_seconds(self) -> float:
        """Return the time from a pod's last phase to its release: mostly short, seldom long."""
        least, most = self.quirks.release_delay_seconds
        return least + (most - least) * self._rng.random() ** 4

    def active_pods(self) -> list[Json]:
        """Return the pods that kubelet counts as active."""
        with self._lock:
            return list(self._pods.values())

    def counts(self) -> tuple[dict[str, tuple[int, int]], frozenset[str]]:
        """Return (capacity, allocatable) by resource, and the resources given up just now."""
        return self._allocator.counts()

    def allocations(self) -> Holdings:
        """Return the devices that the active pods hold."""
        with self._lock:
            active = set(self._pods)
        return {uid: held for uid, held in self._allocator.holdings().items() if uid in active}

    def responses(self, uid: str, container: str) -> Iterable[api_pb2.ContainerAllocateResponse]:
        """Return what the plugins answered for a container."""
        return self._allocator.responses(uid, container)

    def health(self, uid: str, container: str) -> dict[str, dict[str, str]]:
        """Return the health of a container's devices: resource -> id -> health."""
        return self._allocator.health(uid, container)

    def container_env(self, uid: str, container: str) -> dict[str, str]:
        """Return the environment of an active pod's container.

        Raises:
            KeyError: where there is none.
        """
        with self._lock:
            pod = self._pods[uid]
        found = containers.find(pod, container)
        if found is None:
            raise KeyError(container)
        envs = [response.envs for response in self.responses(uid, container)]
        return containers.environment(pod, found, envs)

    def prepare_start(self, pod: Json, container: Json) -> None:
        """Do what comes before every start of a container: PreStartContainer.

        Raises:
            PluginError: where it can't start now.
        """
        self._allocator.prepare_start(pod, container)

    @property
    def registrations(self) -> int:
        """How many plugins have registered since the start."""
        return self._registration.registrations

    def _make(self) -> None:
        """Make the parts that live as long as one kubelet process."""
        self._allocator = DeviceAllocator(
            checkpoint_file=self.plugin_folder / checkpoint.FILE_NAME,
            active_pods=lambda: [_uid(pod) for pod in self.active_pods()],
            rng=self._rng,
            quirks=self.quirks,
            on_change=self._on_change,
            monotonic=self._monotonic,
        )
        self._registration = RegistrationServer(
            self.plugin_folder, self._allocator, rng=self._rng, quirks=self.quirks
        )
        self._pod_resources = PodResourcesServer(
            self.root / POD_RESOURCES_FOLDER,
            self._allocator,
            active_pods=self.active_pods,
            quirks=self.quirks,
            monotonic=self._monotonic,
        )


def _uid(pod: Json) -> str:
    return str(pods.meta_of(pod).get("uid"))


def _long_running(pod: Json) -> list[str]:
    """Return the names of the containers that run once a pod is up: not its plain init ones."""
    spec = pods.spec_of(pod)
    sidecars = [
        each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"
    ]
    return [str(each.get("name")) for each in (*sidecars, *(spec.get("containers") or ()))]
