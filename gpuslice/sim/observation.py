# SPDX-License-Identifier: Apache-2.0
"""What is true in an embedded cluster at one moment, seen from outside the product.

The GPUs come from the machine files, the tokens and environments from what kubelets really handed
out, the pods from the API. Nothing here asks the product's own arithmetic: promises are checked
against this, so the arithmetic is done again, in other words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gpuslice.contract import names

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealGpu:
    """One GPU of a machine file."""

    node: str
    uuid: str
    memory_mib: int
    """For sale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOut:
    """What a kubelet handed to one container, as long as it holds it."""

    node: str
    namespace: str
    pod: str
    uid: str
    container: str
    tokens: tuple[str, ...]
    environment: Mapping[str, str]

    def tokens_by_gpu(self) -> dict[str, int]:
        """Return how many tokens it has of each GPU, by the text before the last ``::``."""
        counts: dict[str, int] = {}
        for token in self.tokens:
            gpu = token.rpartition("::")[0]
            counts[gpu] = counts.get(gpu, 0) + 1
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a pod's author wrote: a fraction, or MiB."""

    fraction: Fraction | None
    memory_mib: int | None

    def mib_on(self, gpu_memory_mib: int) -> int:
        """Return its MiB on a GPU: exact for memory, rounded down for a fraction."""
        if self.memory_mib is not None:
            return self.memory_mib
        assert self.fraction is not None
        return self.fraction.numerator * gpu_memory_mib // self.fraction.denominator


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One moment of one embedded cluster."""

    gpus: tuple[RealGpu, ...]
    pods: tuple[Json, ...]
    hand_outs: tuple[HandOut, ...]
    gpu_nodes: tuple[Json, ...]

    def pod(self, name: str) -> Json:
        """Return a pod by its name; an empty object where there is none."""
        return next((pod for pod in self.pods if pod["metadata"]["name"] == name), {})

    def named(self, names_of_pods: Iterable[str]) -> tuple[Json, ...]:
        """Return those of the named pods that there are, in the order of the names."""
        return tuple(filter(None, map(self.pod, names_of_pods)))

    def running(self) -> tuple[Json, ...]:
        """Return the pods that run and aren't being deleted."""
        return tuple(pod for pod in self.pods if phase(pod) == "Running" and not is_leaving(pod))

    def hand_out(self, pod: Json) -> HandOut | None:
        """Return what a pod was handed, None where it was handed nothing."""
        uid = pod["metadata"]["uid"]
        return next((each for each in self.hand_outs if each.uid == uid), None)

    def memory_mib(self, gpu: str) -> int:
        """Return the memory of a GPU, 0 where no machine has it."""
        return next((each.memory_mib for each in self.gpus if each.uuid == gpu), 0)

    def gpus_of(self, pod: Json) -> tuple[str, ...]:
        """Return the GPUs on which a pod's tokens are."""
        hand_out = self.hand_out(pod)
        return () if hand_out is None else tuple(sorted(hand_out.tokens_by_gpu()))


def name(pod: Json) -> str:
    """Return a pod's name."""
    return str(pod["metadata"]["name"])


def phase(pod: Json) -> str:
    """Return a pod's phase."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_leaving(pod: Json) -> bool:
    """Whether a pod is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_bound(pod: Json) -> bool:
    """Whether a pod has a node."""
    return bool((pod.get("spec") or {}).get("nodeName"))


def unscheduled_words(pod: Json) -> str:
    """Return why the scheduler has not placed a pod, in its own words."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "")
    return ""


def wish(pod: Json) -> Wish | None:
    """Return what a pod's author wrote in `gpu-fraction` or `gpu-memory`, None for neither."""
    annotations = pod["metadata"].get("annotations") or {}
    if names.FRACTION in annotations:
        return Wish(fraction=Fraction(annotations[names.FRACTION]), memory_mib=None)
    if names.MEMORY in annotations:
        return Wish(fraction=None, memory_mib=int(annotations[names.MEMORY]))
    return None
