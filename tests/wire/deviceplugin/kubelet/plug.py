# SPDX-License-Identifier: Apache-2.0
"""The gRPC half of the device plugin on a fake kubelet, without an API server or a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deviceplugin.allocator import Allocator
from deviceplugin.devices import DeviceBoard, device_list
from deviceplugin.folderwatch import FolderWatch
from deviceplugin.injection import Injection
from deviceplugin.registration import Pace, Registrar
from deviceplugin.server import DevicePlugin, PluginServer
from gpuslice.contract.ledger import Claim, ClaimState, Gpu, Ledger, Part, PodRef
from gpuslice.contract.names import SLICE_RESOURCE, GpuUuid, NodeName, PodUid
from gpuslice.contract.shares import parse_share
from gpuslice.sim.kubelet.bare import BareKubelet

L4_MIB = 23034
QUICK = Pace(stream=1.0, look=0.2, first_retry=0.02, last_retry=0.2)


def gpu(index: int, *, memory_mib: int = L4_MIB, slices: int = 100, healthy: bool = True) -> Gpu:
    """Return a GPU called ``GPU-<index>``."""
    return Gpu(
        uuid=GpuUuid(f"GPU-{index}"),
        index=index,
        product="NVIDIA L4",
        memory_mib=memory_mib,
        slices=slices,
        healthy=healthy,
    )


def reserved(name: str, share: str, slices: int, *gpus: Gpu) -> Claim:
    """Return a reservation for the pod of that name, whose uid is ``uid-<name>``."""
    wanted = parse_share(share)
    return Claim(
        pod=PodRef(namespace="ml", name=name, uid=PodUid(f"uid-{name}")),
        container="main",
        share=wanted,
        fit=wanted,
        state=ClaimState.RESERVED,
        shape=tuple(
            Part(gpu=each.uuid, memory_mib=wanted.memory_mib_on(each.memory_mib), slices=slices)
            for each in gpus
        ),
    )


def pod(name: str, slices: int) -> dict[str, Any]:
    """Return an admitted pod as kubelet sees it."""
    return {
        "metadata": {"namespace": "ml", "name": name, "uid": f"uid-{name}"},
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": {SLICE_RESOURCE: str(slices)}}}]
        },
    }


def eventually(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    """Wait for a condition that no event of ours announces."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.005)


class Uncounted:
    """A watcher that doesn't."""

    def outcome(self, result: str) -> None:
        """Forget it."""

    def took(self, call: str, seconds: float) -> None:
        """Forget it."""


@dataclass
class Plug:
    """A plugin without its agent."""

    kubelet: BareKubelet
    board: DeviceBoard
    allocator: Allocator
    registrar: Registrar
    events: list[tuple[str, str]] = field(default_factory=list)

    @property
    def healthy(self) -> tuple[int, int]:
        """Capacity and allocatable, as kubelet would tell its Node."""
        counts, _ = self.kubelet.counts()
        return counts.get(SLICE_RESOURCE, (-1, -1))

    def knows(self, *claims: Claim) -> None:
        """Have these claims in the ledger."""
        ledger = self.allocator.view.ledger
        ledger = Ledger(node=ledger.node, gpus=ledger.gpus)
        for claim in claims:
            ledger = ledger.with_claim(claim)
        self.allocator.update(ledger, tokens={}, unclaimed=())

    def tokens(self, name: str) -> frozenset[str]:
        """Return what kubelet gave the pod's container."""
        return self.kubelet.allocations()[f"uid-{name}"]["main"][SLICE_RESOURCE]


@contextmanager
def plugged(kubelet: BareKubelet, *gpus: Gpu, hears: bool = True) -> Iterator[Plug]:
    """Yield a plugin with these GPUs that wants to be registered.

    Args:
        kubelet: may run already, or not yet.
        gpus: in the order of their index.
        hears: whether the system tells of changes in kubelet's folder.
    """
    board = DeviceBoard()
    allocator = Allocator(Ledger(node=NodeName("node-a"), gpus=gpus), clock=time.monotonic)
    events: list[tuple[str, str]] = []

    def new_server(socket: Path) -> PluginServer:
        return PluginServer(DevicePlugin(board, allocator, Injection, Uncounted()), board, socket)

    registrar = Registrar(
        kubelet.plugin_folder,
        SLICE_RESOURCE,
        board,
        new_server,
        pace=QUICK,
        on_event=lambda event, detail: events.append((event, detail)),
    )
    board.on_streaming = registrar.wake
    board.publish(device_list(gpus))
    watch = FolderWatch(kubelet.plugin_folder, registrar.wake if hears else lambda: None)
    registrar.start()
    watch.start()
    try:
        yield Plug(kubelet, board, allocator, registrar, events)
    finally:
        watch.stop()
        registrar.stop()
