# SPDX-License-Identifier: Apache-2.0
"""Metrics that are read when they are scraped, so that none is ever stale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deviceplugin.allocator import Allocator
from deviceplugin.mps.keeper import State
from deviceplugin.usage import Use
from gpuslice.contract.ledger import ClaimState
from gpuslice.contract.names import GpuUuid, NodeName
from gpuslice.runtime.metrics import PREFIX

_OF_CONTAINER = ("namespace", "pod", "container", "node", "gpu_uuid")


class LedgerCollector(Collector):
    """Reads what is known when it is scraped, so that no gauge is ever stale."""

    def __init__(
        self, node: NodeName, allocator: Allocator, is_streaming: Callable[[], bool]
    ) -> None:
        """Tell of a node."""
        self._node = node
        self._allocator = allocator
        self._is_streaming = is_streaming

    def describe(self) -> list[Metric]:
        """Return nothing: the names are known without a look."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the GPUs, and what is claimed of them."""
        view = self._allocator.view
        ledger = view.ledger
        by_gpu = ("node", "gpu_uuid")
        families: dict[str, GaugeMetricFamily] = {}

        def family(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
            families[name] = GaugeMetricFamily(PREFIX + name, text, labels=labels)
            return families[name]

        info = family("gpu_info", "A GPU; always 1", (*by_gpu, "model", "index"))
        healthy = family("gpu_healthy", "Whether a GPU takes part: 1 or 0", by_gpu)
        sick = family(
            "gpu_unhealthy_claimed_slices", "Slices that pods have of a GPU that is sick", by_gpu
        )
        capacity = family("slices_capacity", "Slices of a GPU", by_gpu)
        claimed = family("slices_allocated", "Slices claimed of a GPU", by_gpu)
        memory = family("gpu_memory_bytes", "A GPU's memory that is for sale", by_gpu)
        taken = family("gpu_memory_claimed_bytes", "Memory claimed of a GPU", by_gpu)
        for gpu in ledger.gpus:
            labels = [self._node, gpu.uuid]
            used = gpu.slices - ledger.free_slices(gpu)
            info.add_metric([*labels, gpu.product, str(gpu.index)], 1)
            healthy.add_metric(labels, float(gpu.healthy))
            sick.add_metric(labels, 0 if gpu.healthy else used)
            capacity.add_metric(labels, gpu.slices)
            claimed.add_metric(labels, used)
            memory.add_metric(labels, gpu.memory_mib * 2**20)
            taken.add_metric(labels, (gpu.memory_mib - ledger.free_mib(gpu)) * 2**20)
        held = family(
            "container_slices",
            "Slices that a container has of a GPU",
            ("namespace", "pod", "container", *by_gpu),
        )
        for claim in ledger.claims:
            where = [claim.pod.namespace, claim.pod.name, claim.container, self._node]
            for part in claim.shape:
                held.add_metric([*where, part.gpu], part.slices)
        states = Counter(claim.state for claim in ledger.claims)
        claims = family("claims", "Claims, by how far their pods have come", ("node", "state"))
        for state in ClaimState:
            claims.add_metric([self._node, state.value], states[state])
        over = family("overclaimed_gpus", "GPUs with more claimed than there is", ("node",))
        over.add_metric([self._node], len(ledger.overclaimed()))
        flight = family("grants_in_flight", "Allocations not yet read back from kubelet", ("node",))
        flight.add_metric([self._node], len(view.in_flight))
        stream = family("kubelet_stream_open", "Whether kubelet listens: 1 or 0", ("node",))
        stream.add_metric([self._node], float(self._is_streaming()))
        yield from families.values()


class UseCollector(Collector):
    """What containers use beside what they claim."""

    def __init__(self, node: NodeName, uses: Callable[[], tuple[Use, ...]]) -> None:
        """Tell of a node."""
        self._node = node
        self._uses = uses

    def describe(self) -> list[Metric]:
        """Return nothing: the names are known without a look."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield each container's memory, and how many are over."""
        used = GaugeMetricFamily(
            PREFIX + "container_memory_used_bytes",
            "Memory that a container's processes use of a GPU, as the driver tells it",
            labels=_OF_CONTAINER,
        )
        claimed = GaugeMetricFamily(
            PREFIX + "container_memory_claimed_bytes",
            "Memory that a container claims of a GPU",
            labels=_OF_CONTAINER,
        )
        over = GaugeMetricFamily(
            PREFIX + "containers_over_claim",
            "Containers that use more of a GPU than they claim",
            labels=("node",),
        )
        uses = self._uses()
        for use in uses:
            labels = [use.pod.namespace, use.pod.name, use.container, self._node, use.gpu]
            used.add_metric(labels, use.used_mib * 2**20)
            claimed.add_metric(labels, use.claimed_mib * 2**20)
        over.add_metric([self._node], sum(use.is_over for use in uses))
        yield from (used, claimed, over)


class MpsCollector(Collector):
    """How the control daemons are."""

    def __init__(self, node: NodeName, states: Callable[[], Mapping[GpuUuid, State]]) -> None:
        """Tell of a node."""
        self._node = node
        self._states = states

    def describe(self) -> list[Metric]:
        """Return nothing: the names are known without a look."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield each GPU's daemon."""
        by_gpu = ("node", "gpu_uuid")
        up = GaugeMetricFamily(
            PREFIX + "mps_daemon_up",
            "Whether the MPS control daemon of a GPU serves: 1 or 0",
            labels=by_gpu,
        )
        restarts = CounterMetricFamily(
            PREFIX + "mps_daemon_deaths",
            "Control daemons of a GPU that died or didn't start",
            labels=by_gpu,
        )
        for uuid, state in sorted(self._states().items()):
            up.add_metric([self._node, uuid], float(state.running))
            restarts.add_metric([self._node, uuid], state.restarts)
        yield from (up, restarts)
