# SPDX-License-Identifier: Apache-2.0
"""The half of the device plugin that kubelet calls, as a process: for `deviceplugin_bench`.

Each line on its standard input makes the ledger as new: every GPU full of reservations of one size.
"""

from __future__ import annotations

import sys
import threading
import time
from fractions import Fraction
from pathlib import Path

from deviceplugin.allocator import Allocator
from deviceplugin.devices import DeviceBoard, device_list
from deviceplugin.injection import Injection
from deviceplugin.server import DevicePlugin, PluginServer
from gpuslice.contract.ledger import Claim, ClaimState, Gpu, Ledger, Part, PodRef
from gpuslice.contract.names import GpuUuid, NodeName, PodUid
from gpuslice.contract.shares import Share

MEMORY_MIB = 81559


class Uncounted:
    """A watcher that doesn't."""

    def outcome(self, result: str) -> None:
        """Forget it."""

    def took(self, call: str, seconds: float) -> None:
        """Forget it."""


def full_ledger(gpus: tuple[Gpu, ...], size: int) -> Ledger:
    """Return a ledger whose GPUs are full of reservations of `size` slices."""
    share = Share(fraction=Fraction(size, gpus[0].slices))
    claims = [
        Claim(
            pod=PodRef(namespace="ml", name=f"{gpu.index}-{number}", uid=_uid(gpu, number)),
            container="main",
            share=share,
            fit=share,
            state=ClaimState.RESERVED,
            shape=(
                Part(gpu=gpu.uuid, memory_mib=share.memory_mib_on(gpu.memory_mib), slices=size),
            ),
        )
        for gpu in gpus
        for number in range(gpu.slices // size)
    ]
    return Ledger(node=NodeName("node-a"), gpus=gpus, claims=tuple(claims))


def _uid(gpu: Gpu, number: int) -> PodUid:
    return PodUid(f"{gpu.index:08}-0000-4000-8000-{number:012}")


def main(argv: list[str]) -> int:
    """Serve until the input ends."""
    socket, count, slices, size = Path(argv[0]), int(argv[1]), int(argv[2]), int(argv[3])
    gpus = tuple(
        Gpu(
            uuid=GpuUuid(f"GPU-{index:08}-5b1d-4c3e-9a52-1f2e3d4c5b6a"),
            index=index,
            product="NVIDIA H100 80GB HBM3",
            memory_mib=MEMORY_MIB,
            slices=slices,
        )
        for index in range(count)
    )
    ledger = full_ledger(gpus, size)
    bound = frozenset(claim.pod.uid for claim in ledger.claims)
    board = DeviceBoard()
    board.publish(device_list(gpus))
    holder = [Allocator(ledger, clock=time.monotonic)]

    class Current:
        """The newest allocator, by the same face."""

        def __getattr__(self, name: str) -> object:
            return getattr(holder[0], name)

    servicer = DevicePlugin(board, Current(), Injection, Uncounted())  # type: ignore[arg-type]  # by its face
    server = PluginServer(servicer, board, socket)
    server.start()
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        fresh = Allocator(ledger, clock=time.monotonic)
        if hasattr(fresh.view, "bound"):
            fresh.update(ledger, tokens={}, unclaimed=(), bound=bound)
        holder[0] = fresh
        sys.stdout.write("new\n")
        sys.stdout.flush()
    server.stop()
    return 0 if threading.active_count() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
