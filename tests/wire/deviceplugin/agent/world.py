# SPDX-License-Identifier: Apache-2.0
"""One node: API server, kubelet and device plugin over their real protocols, arbiter by hand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import yaml

from deviceplugin.daemon import Daemon
from deviceplugin.diagnosis import Xid
from deviceplugin.inventory import Gpu, GpuProcess, Reading
from deviceplugin.registration import Pace
from gpuslice.contract import gpunode, pods
from gpuslice.contract.ledger import Claim, ClaimState, Ledger, Part
from gpuslice.contract.names import SLICE_RESOURCE, GpuUuid, NodeName
from gpuslice.contract.shares import parse_share
from gpuslice.runtime import settings
from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import ConflictError, NotFoundError
from gpuslice.runtime.kube.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    GPU_NODES,
    GPU_SHARES,
    NODES,
    PODS,
)
from gpuslice.runtime.metrics import Metrics
from gpuslice.sim.apiserver.server import ApiServer
from gpuslice.sim.kubelet.kubelet import Kubelet
from gpuslice.sim.kubelet.quirks import Quirks
from gpuslice.sim.kubelet.remote import RemoteApi
from gpuslice.sim.kubelet.timings import Timings

DEFINITIONS = Path(__file__).parents[4] / "deploy" / "crds"
L4_MIB = 23034
NODE = NodeName("node-a")
QUICK = Pace(stream=1.0, look=0.2, first_retry=0.02, last_retry=0.2)


def l4(index: int, *, memory_mib: int = L4_MIB) -> Gpu:
    """Return a GPU called ``GPU-<index>``."""
    return Gpu(
        uuid=GpuUuid(f"GPU-{index}"),
        index=index,
        product="NVIDIA L4",
        memory_mib=memory_mib,
        minor_number=index,
    )


class StillDriver:
    """Hardware on which nothing happens but what the test says."""

    def __init__(self, *gpus: Gpu) -> None:
        """Have these GPUs."""
        self.gpus = gpus
        self.used_by: tuple[GpuProcess, ...] = ()
        self.modes: dict[GpuUuid, int] = {}

    def open(self) -> None:
        """Be there."""

    def close(self) -> None:
        """Be there still."""

    def read(self) -> Reading:
        """Return them."""
        return Reading(gpus=self.gpus)

    def compute_mode(self, uuid: GpuUuid) -> int:
        """Return the mode."""
        return self.modes.get(uuid, 0)

    def set_compute_mode(self, uuid: GpuUuid, mode: int) -> None:
        """Set it."""
        self.modes[uuid] = mode

    def processes(self) -> tuple[GpuProcess, ...]:
        """Return those that the test lets use them."""
        return self.used_by

    def watch(self) -> Silence:
        """Return a source without XIDs."""
        return Silence(frozenset(gpu.uuid for gpu in self.gpus))


class Silence:
    """No XIDs."""

    deaf: dict[int, str] = {}  # noqa: RUF012 - the protocol's type

    def __init__(self, asked: frozenset[GpuUuid]) -> None:
        """Listen to these."""
        self.asked = asked

    def wait(self, timeout_seconds: float) -> Xid | None:
        """Wait in vain."""
        time.sleep(timeout_seconds)
        return None

    def close(self) -> None:
        """Stop."""


def eventually(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    """Wait for a condition that no event of ours announces."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.003)


class World:
    """All of it."""

    def __init__(self, root: Path, *gpus: Gpu, api: ApiServer | None = None) -> None:
        """Lay it out; nothing runs yet but the API server, which may have been started before."""
        self.root = root
        self.gpus = gpus
        self.api = api or ApiServer(port=0).start()
        self.kubeconfig = self.api.kubeconfig(root / "kubeconfig")
        self.client = KubeClient(config.load(self.kubeconfig), component="test")
        self.define()
        self.kubelet = Kubelet(
            node_name=NODE,
            root=root / "kubelet",
            api=RemoteApi(self.client),
            labels={},
            rng=Random(7),
            quirks=Quirks(),
            timings=Timings(
                status_interval_seconds=0.05,
                push_on_change=True,
                start_seconds=0.01,
                stop_seconds=0.01,
                kill_seconds=0.3,
                speed=100,
            ),
            monotonic=time.monotonic,
        )
        self.daemons: list[Daemon] = []

    def define(self) -> None:
        """Define our kinds, as they are deployed."""
        for path in sorted(DEFINITIONS.glob("*.yaml")):
            for thing in yaml.safe_load_all(path.read_text(encoding="utf-8")):
                self.client.create(CUSTOM_RESOURCE_DEFINITIONS, thing)

    # --- processes

    def plugin(self, **overrides: Any) -> Daemon:
        """Start a device plugin in this process."""
        chosen = settings.load(
            None,
            {
                "devicePlugin.kubeletRoot": str(self.root / "kubelet"),
                "devicePlugin.healthPollSeconds": 0.1,
                "devicePlugin.healthRecoverySeconds": 0.3,
                "forceDeletedSeconds": 0.5,
            }
            | overrides,
        )
        client = KubeClient(config.load(self.kubeconfig), component="device-plugin")
        daemon = Daemon(
            NODE,
            chosen,
            client,
            Metrics("device-plugin", process=False),
            driver=StillDriver(*self.gpus),
            pace=QUICK,
        )
        daemon.start()
        self.daemons.append(daemon)
        return daemon

    def serving(self) -> Daemon:
        """Start kubelet and plugin, and wait until the ledger says that it serves."""
        self.kubelet.start()
        daemon = self.plugin()
        eventually(self.is_serving, "serving")
        return daemon

    def end(self) -> None:
        """Stop everything."""
        for daemon in self.daemons:
            daemon.stop(drain_seconds=0)
        self.kubelet.stop()
        self.client.close()
        self.api.stop()

    # --- what is there

    def ledger(self) -> Ledger | None:
        """Return the ledger as the API has it."""
        try:
            found = self.client.get(GPU_NODES, NODE)
        except NotFoundError:
            return None
        return gpunode.ledger_of(found) if "status" in found else None

    def is_serving(self) -> bool:
        """Whether the ledger says so, and the Node shows that ledger."""
        ledger = self.ledger()
        return ledger is not None and ledger.serving and "0.5" in self.fits()

    def states(self) -> dict[str, str]:
        """Return the state of each pod's claim."""
        ledger = self.ledger()
        return {
            claim.pod.name: "gone" if claim.pod_gone else claim.state.value
            for claim in (ledger.claims if ledger else ())
        }

    def places(self) -> dict[str, dict[str, int]]:
        """Return the slices of each pod's claim per GPU."""
        ledger = self.ledger()
        return {
            claim.pod.name: {part.gpu: part.slices for part in claim.shape}
            for claim in (ledger.claims if ledger else ())
        }

    def held(self) -> dict[str, dict[str, int]]:
        """Return the tokens of each pod per GPU, as kubelet has them."""
        names = {pods.ref(pod).uid: pods.ref(pod).name for pod in self.client.list(PODS)}
        return {
            names[uid]: dict(
                Counter(token.partition("::")[0] for token in containers["main"][SLICE_RESOURCE])
            )
            for uid, containers in self.kubelet.allocations().items()
            if uid in names and SLICE_RESOURCE in containers.get("main", {})
        }

    def fits(self) -> dict[str, int]:
        """Return the Node's fits, and check that both maps agree."""
        status = self.client.get(NODES, NODE)["status"]
        shown = [
            {
                key.removeprefix("gpuslice.dev/fit-"): int(value)
                for key, value in (status.get(kind) or {}).items()
                if key.startswith("gpuslice.dev/fit-")
            }
            for kind in ("capacity", "allocatable")
        ]
        assert shown[0] == shown[1]
        return shown[0]

    def pod(self, name: str) -> dict[str, Any]:
        """Return a pod."""
        return self.client.get(PODS, name, namespace="default")

    def phase(self, name: str) -> str:
        """Return a pod's phase."""
        return str(self.pod(name)["status"].get("phase"))

    # --- what a user, the webhook and the scheduler do

    def share(self, share: str, slices: int) -> None:
        """Have a share in use."""
        wanted = parse_share(share)
        thing = {"metadata": {"name": share}, "spec": {"share": str(wanted), "slices": slices}}
        self.client.create(GPU_SHARES, thing)
        eventually(lambda: share in self.fits(), f"fit of {share}")

    def create(self, name: str, share: str, slices: int, words: str = "infinity") -> dict[str, Any]:
        """Create a pod as admission leaves it."""
        total = str(slices * parse_share(share).devices)
        asked = {SLICE_RESOURCE: total, f"gpuslice.dev/fit-{share}": "1"}
        container = {
            "name": "main",
            "image": "ubuntu",
            "args": ["sleep", words],
            "resources": {"limits": asked, "requests": asked},
        }
        about = {"name": name, "namespace": "default", "labels": {"gpuslice.dev/share": share}}
        spec = {"restartPolicy": "Never", "containers": [container]}
        return self.client.create(PODS, {"metadata": about, "spec": spec})

    def claim(self, pod: dict[str, Any], share: str, slices: int, *indexes: int) -> int:
        """Reserve as the arbiter does; return the ledger's version."""
        wanted = parse_share(share)
        made = Claim(
            pod=pods.ref(pod),
            container="main",
            share=wanted,
            fit=wanted,
            state=ClaimState.RESERVED,
            shape=tuple(
                Part(
                    gpu=self.gpus[index].uuid,
                    memory_mib=wanted.memory_mib_on(self.gpus[index].memory_mib),
                    slices=slices,
                )
                for index in indexes
            ),
        )
        while True:
            read = self.client.get(GPU_NODES, NODE)
            ledger = gpunode.ledger_of(read).with_claim(made)
            try:
                written = self.client.replace(
                    GPU_NODES, gpunode.with_status(read, ledger), status=True
                )
            except ConflictError:
                continue
            return int(written["metadata"]["resourceVersion"])

    def shown_version(self) -> int:
        """Return the version of the ledger that the Node's fits were computed from."""
        return int(pods.annotations_of(self.client.get(NODES, NODE))["gpuslice.dev/ledger"])

    def place(self, name: str, share: str, slices: int, *indexes: int, **more: str) -> None:
        """Create a pod, claim GPUs for it, and bind it once the Node shows that."""
        pod = self.create(name, share, slices, **more)
        version = self.claim(pod, share, slices, *indexes)
        eventually(lambda: self.shown_version() >= version, "the Node shows the claim")
        self.client.bind(pod, NODE)
