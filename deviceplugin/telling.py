# SPDX-License-Identifier: Apache-2.0
"""What people and their dashboards are told: Events for what someone should act on, and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deviceplugin.allocator import Allocator
from deviceplugin.reconciliation import Note, Repair
from gpuslice.contract import names
from gpuslice.contract.ledger import ClaimState
from gpuslice.contract.names import NodeName
from gpuslice.runtime.kube.events import EventRecorder
from gpuslice.runtime.kube.resources import NODES, PODS
from gpuslice.runtime.metrics import PREFIX, Metrics

WHOLE_GPUS_REASON = "GpusSoldTwice"


class Reporter:
    """Counts, and tells of what was repaired."""

    def __init__(self, node: NodeName, metrics: Metrics, recorder: EventRecorder) -> None:
        """Report for a node."""
        self._node = node
        self._recorder = recorder
        self._allocations = metrics.counter(
            "allocations_total",
            "Containers that kubelet asked tokens for, by how that ended",
            ("result",),
        )
        self._seconds = metrics.histogram(
            "allocation_duration_seconds",
            "How long kubelet waited for an answer; it admits no other pod meanwhile",
            ("call",),
        )
        self._registrations = metrics.counter(
            "kubelet_registrations_total", "Successful registrations with kubelet"
        )
        self._lost = metrics.counter(
            "kubelet_registrations_lost_total", "Registrations that were over, by why", ("cause",)
        )
        self._repairs = metrics.counter(
            "ledger_repairs_total", "Differences between ledger and kubelet", ("repair",)
        )
        self._waiting: dict[str, str] = {}
        self._waits = metrics.gauge(
            "waiting", "Whether this plugin waits for something: 1 or 0", ("what",)
        )
        self._whole_gpus = metrics.gauge(
            "whole_gpus_sold_beside",
            "GPUs that another plugin sells on this node as a whole: they are promised twice",
        )

    # --- what this plugin waits for

    def waits(self, what: str, problem: str) -> None:
        """Tell that this plugin waits for something, or no longer does.

        Args:
            what: ``driver``, ``kubelet`` and the like: a metric's label.
            problem: what is wrong; empty once it is over.
        """
        if self._waiting.get(what, "") == problem:
            return
        self._waiting[what] = problem
        self._waits.labels(what=what).set(1 if problem else 0)
        if problem:
            self._on_node(f"WaitingFor{what.title().replace('-', '')}", problem)

    def _on_node(self, reason: str, message: str, *, warning: bool = True) -> None:
        # kubelet's own Events of a Node bear its name as the uid: `kubectl describe` finds it.
        about = {"metadata": {"name": self._node, "uid": self._node}}
        self._recorder.record(NODES, about, reason, message, warning=warning)

    # --- the servicer's

    def outcome(self, result: str) -> None:
        """Count an Allocate."""
        self._allocations.labels(result=result).inc()

    def took(self, call: str, seconds: float) -> None:
        """Note how long a call of kubelet's took."""
        self._seconds.labels(call=call).observe(seconds)

    # --- the registrar's

    def registration(self, event: str) -> None:
        """Count a registration, or what ended one."""
        if event == "registered":
            self._registrations.inc()
        elif event != "waiting":
            self._lost.labels(cause=event).inc()

    # --- the agent's

    def repaired(self, note: Note) -> None:
        """Tell of a repair, on its pod."""
        self._repairs.labels(repair=note.repair.value).inc()
        about = {"name": note.pod.name, "namespace": note.pod.namespace, "uid": note.pod.uid}
        self._recorder.record(
            PODS,
            {"metadata": about},
            note.repair.value,
            note.message,
            # kubelet may serve equal pods in any order: an exchange is nobody's fault.
            warning=note.repair is not Repair.EXCHANGED,
        )

    def sells_whole_gpus(self, count: int) -> None:
        """Tell that another plugin sells this node's GPUs as a whole, or no longer does."""
        self._whole_gpus.set(count)
        if count:
            self._on_node(
                WHOLE_GPUS_REASON,
                f"another device plugin sells {count} {names.WHOLE_GPU_RESOURCE} of this node: the "
                "same GPUs are promised twice; keep it off the nodes that gpuslice shares",
            )


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


def state_of(problems: dict[str, str], *, ready: bool) -> tuple[bool, str]:
    """Return what a probe answers."""
    text = "; ".join(f"{what}: {problem}" for what, problem in sorted(problems.items()))
    return ready, text or "ok"
