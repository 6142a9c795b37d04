# SPDX-License-Identifier: Apache-2.0
"""What containers use of GPU memory, beside what they claim: pure, from what was read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from deviceplugin.inventory import GpuProcess
from gpuslice.contract.ledger import Claim, PodRef
from gpuslice.contract.names import GpuUuid, PodUid

Json = Mapping[str, Any]

_CONTAINER_ID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One container's memory on one GPU."""

    pod: PodRef
    container: str
    gpu: GpuUuid
    claimed_mib: int
    used_mib: int
    """Of its processes of which the driver tells."""

    @property
    def is_over(self) -> bool:
        """Whether it uses more than it claims."""
        return self.used_mib > self.claimed_mib


def container_in(cgroup: str) -> str | None:
    """Return the id of the container that a process belongs to, None for a process of the node.

    Args:
        cgroup: the text of ``/proc/<pid>/cgroup``. Every container runtime writes the id into the
            path, with one or another word around it; pod ids aren't in every path. Of nested
            containers the outermost is kubelet's.
    """
    for line in cgroup.splitlines():
        found = _CONTAINER_ID.search(line.rpartition(":")[2])
        if found is not None:
            return found[0]
    return None


def containers_of(pod: Json) -> dict[str, str]:
    """Return a pod's containers' names by their ids, as kubelet tells them."""
    status = pod.get("status") or {}
    return {
        each["containerID"].rpartition("/")[2]: each["name"]
        for group in ("initContainerStatuses", "containerStatuses")
        for each in status.get(group) or ()
        if each.get("containerID")
    }


def uses(
    claims: Iterable[Claim],
    pods: Mapping[PodUid, Json],
    processes: Iterable[GpuProcess],
    container_of: Mapping[int, str],
) -> tuple[Use, ...]:
    """Return the use of each claim on each of its GPUs, and of GPUs that it has no claim on.

    Args:
        claims: of this node.
        pods: those bound here.
        processes: on all GPUs.
        container_of: container ids by process id; a process of no container has none.
    """
    sums: dict[tuple[str, GpuUuid], int] = {}
    for process in processes:
        container = container_of.get(process.pid)
        # The driver doesn't tell of every process: what isn't known is not added up.
        if container is not None and process.used_mib is not None:
            key = container, process.gpu
            sums[key] = sums.get(key, 0) + process.used_mib
    found: list[Use] = []
    for claim in claims:
        names = containers_of(pods.get(claim.pod.uid) or {})
        claimed = {part.gpu: part.memory_mib for part in claim.shape}
        used = {(name, gpu): 0 for name in (claim.container,) for gpu in claimed}
        for (container, gpu), mib in sums.items():
            if container in names:
                used[names[container], gpu] = used.get((names[container], gpu), 0) + mib
        found += [
            Use(
                pod=claim.pod,
                container=name,
                gpu=gpu,
                claimed_mib=claimed.get(gpu, 0) if name == claim.container else 0,
                used_mib=mib,
            )
            for (name, gpu), mib in used.items()
        ]
    return tuple(sorted(found, key=lambda use: (use.pod.uid, use.container, use.gpu)))
