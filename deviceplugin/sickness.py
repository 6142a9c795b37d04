# SPDX-License-Identifier: Apache-2.0
"""Telling of sick GPUs: once on the node, and once on each pod that has a part of one."""

from __future__ import annotations

import threading
from typing import Protocol

from gpuslice.contract.ledger import Gpu, Ledger, PodRef
from gpuslice.contract.names import GpuUuid, PodUid


class Teller(Protocol):
    """Tells people."""

    def sick(self, gpu: Gpu, pods: int) -> None:
        """Tell the node's people that a GPU is sick, of which so many pods have a part."""

    def sick_for(self, gpu: Gpu, pod: PodRef) -> None:
        """Tell a pod's people."""

    def well(self, gpu: Gpu) -> None:
        """Tell the node's people that it is well again."""


class Sickness:
    """Remembers what was told. Any thread may ask."""

    def __init__(self, teller: Teller) -> None:
        """Begin with nothing told: a restart tells once more of what is still sick."""
        self._teller = teller
        self._lock = threading.Lock()
        self._told: dict[GpuUuid, tuple[str, frozenset[PodUid]]] = {}

    def see(self, ledger: Ledger) -> None:
        """Tell of what has changed since the last look; what runs there stays where it is."""
        with self._lock:
            for gpu in ledger.gpus:
                self._see(gpu, ledger)

    def _see(self, gpu: Gpu, ledger: Ledger) -> None:
        if gpu.healthy:
            if self._told.pop(gpu.uuid, None) is not None:
                self._teller.well(gpu)
            return
        pods = {
            claim.pod.uid: claim.pod
            for claim in ledger.claims
            if gpu.uuid in claim.gpus and not claim.pod_gone
        }
        reason, told = self._told.get(gpu.uuid, (None, frozenset()))
        if reason != gpu.reason:
            self._teller.sick(gpu, len(pods))
            told = frozenset()
        for uid, pod in sorted(pods.items()):
            if uid not in told:
                self._teller.sick_for(gpu, pod)
        self._told[gpu.uuid] = gpu.reason, frozenset(pods)
