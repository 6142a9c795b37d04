# SPDX-License-Identifier: Apache-2.0
"""What people and their dashboards are told: Events for what someone should act on, and metrics."""

from __future__ import annotations

from deviceplugin.reconciliation import Note, Repair
from deviceplugin.usage import Use
from gpuslice.contract import names
from gpuslice.contract.ledger import Gpu, PodRef
from gpuslice.contract.names import NodeName
from gpuslice.runtime.kube.events import EventRecorder
from gpuslice.runtime.kube.resources import NODES, PODS
from gpuslice.runtime.metrics import Metrics

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

    # --- GPUs, and what is used of them

    def sick(self, gpu: Gpu, pods: int) -> None:
        """Tell that a GPU is sick."""
        self._on_node(
            "GpuUnhealthy",
            f"GPU {gpu.uuid} takes no more pods: {gpu.reason}; {pods} of its pods run on",
        )

    def sick_for(self, gpu: Gpu, pod: PodRef) -> None:
        """Tell a pod's people."""
        self._on_pod(pod, "GpuUnhealthy", f"GPU {gpu.uuid}, of which it has a share: {gpu.reason}")

    def well(self, gpu: Gpu) -> None:
        """Tell that it is well again."""
        self._on_node("GpuRecovered", f"GPU {gpu.uuid} takes pods again", warning=False)

    def over(self, use: Use) -> None:
        """Tell that a container uses more than it claims."""
        self._on_pod(
            use.pod,
            "MemoryOverClaim",
            f"container {use.container} uses {use.used_mib} MiB of GPU {use.gpu} and claims "
            f"{use.claimed_mib} MiB: its neighbours there may run out of memory",
        )

    def _on_pod(self, pod: PodRef, reason: str, message: str, *, warning: bool = True) -> None:
        about = {"metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}}
        self._recorder.record(PODS, about, reason, message, warning=warning)

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
        # kubelet may serve equal pods in any order: an exchange is nobody's fault.
        fault = note.repair is not Repair.EXCHANGED
        self._on_pod(note.pod, note.repair.value, note.message, warning=fault)

    def sells_whole_gpus(self, count: int) -> None:
        """Tell that another plugin sells this node's GPUs as a whole, or no longer does."""
        self._whole_gpus.set(count)
        if count:
            self._on_node(
                WHOLE_GPUS_REASON,
                f"another device plugin sells {count} {names.WHOLE_GPU_RESOURCE} of this node: the "
                "same GPUs are promised twice; keep it off the nodes that gpuslice shares",
            )


def state_of(problems: dict[str, str], *, ready: bool) -> tuple[bool, str]:
    """Return what a probe answers."""
    text = "; ".join(f"{what}: {problem}" for what, problem in sorted(problems.items()))
    return ready, text or "ok"
