# SPDX-License-Identifier: Apache-2.0
"""The ledger on the wire: `GpuNode` objects to ledgers and back, and `GpuShare` objects.

The agent writes the spec (the inventory), the arbiter and the agent the status (the claims). What
a person decides, the cordon, is an annotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuslice.contract import names, pods
from gpuslice.contract.ledger import Claim, ClaimState, Gpu, Ledger, Part, PodRef
from gpuslice.contract.placement import Demand, no_room
from gpuslice.contract.shares import Share, parse_share

Json = Mapping[str, Any]


def ledger_of(gpu_node: Json) -> Ledger:
    """Return the ledger that a `GpuNode` object holds.

    Raises:
        ValueError, KeyError: where the object is none that gpuslice wrote; its CRD's schema
            keeps such objects out.
    """
    spec, status = gpu_node.get("spec") or {}, gpu_node.get("status") or {}
    cordoned = {
        uuid.strip()
        for uuid in pods.annotations_of(gpu_node).get(names.CORDON_ANNOTATION, "").split(",")
    }
    gpus = [_gpu_of(each, cordoned) for each in spec.get("gpus") or ()]
    return Ledger(
        node=names.NodeName(pods.meta_of(gpu_node)["name"]),
        gpus=tuple(sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid))),
        claims=tuple(_claim_of(each) for each in status.get("claims") or ()),
        serving=bool(status.get("serving", False)),
    )


def _gpu_of(item: Json, cordoned: set[str]) -> Gpu:
    return Gpu(
        uuid=names.GpuUuid(item["uuid"]),
        index=item["index"],
        product=item.get("product", ""),
        memory_mib=item["memoryMiB"],
        slices=item["slices"],
        healthy=item.get("healthy", True),
        reason=item.get("reason", ""),
        cordoned=item["uuid"] in cordoned,
    )


def _claim_of(item: Json) -> Claim:
    pod = item["pod"]
    share = parse_share(item["share"])
    return Claim(
        pod=PodRef(namespace=pod["namespace"], name=pod["name"], uid=names.PodUid(pod["uid"])),
        container=item["container"],
        share=share,
        fit=parse_share(item["fit"]) if "fit" in item else share,
        state=ClaimState(item["state"]),
        shape=tuple(
            Part(
                gpu=names.GpuUuid(part["gpu"]), memory_mib=part["memoryMiB"], slices=part["slices"]
            )
            for part in item["shape"]
        ),
        binds=item.get("binds", 1),
        pod_gone=item.get("podGone", False),
    )


def status_of(ledger: Ledger) -> dict[str, Any]:
    """Return the status of a `GpuNode` object that holds a ledger."""
    return {
        "serving": ledger.serving,
        "claims": [_claim_item(claim) for claim in ledger.claims],
        "summary": summary(ledger),
    }


def _claim_item(claim: Claim) -> dict[str, Any]:
    pod = claim.pod
    item: dict[str, Any] = {
        "pod": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
        "container": claim.container,
        "share": str(claim.share),
        "fit": str(claim.fit),
        "state": claim.state.value,
        "shape": [
            {"gpu": part.gpu, "memoryMiB": part.memory_mib, "slices": part.slices}
            for part in claim.shape
        ],
    }
    if claim.binds > 1:
        item["binds"] = claim.binds
    if claim.pod_gone:
        item["podGone"] = True
    return item


def summary(ledger: Ledger) -> dict[str, str]:
    """Return what `kubectl get gpunodes` shows of a ledger."""
    slices = sum(gpu.slices for gpu in ledger.gpus)
    claimed = sum(claim.total_slices for claim in ledger.claims)
    sick = [gpu for gpu in ledger.gpus if not gpu.healthy]
    largest = no_room(ledger, Share(memory_mib=1)).largest_free_mib
    if sick:
        health = f"{len(sick)} of {len(ledger.gpus)} unhealthy"
    else:
        health = "healthy" if ledger.serving else "not serving"
    return {
        "gpus": str(len(ledger.gpus)),
        "slices": str(slices),
        "claimed": f"{claimed} ({len(ledger.claims)} pods)",
        "largestFree": f"{largest} MiB",
        "health": health,
    }


def pod_annotations(claim: Claim) -> dict[str, str]:
    """Return the annotations that tell a pod's reader which GPU it has.

    MiB are per GPU: one number where they are equal on all, else one for each, in the GPUs' order.
    """
    memories = [str(part.memory_mib) for part in claim.shape]
    return {
        names.GPU_ANNOTATION: ",".join(claim.gpus),
        names.MEMORY_MIB_ANNOTATION: memories[0] if len(set(memories)) == 1 else ",".join(memories),
        names.SLICES_ANNOTATION: str(claim.total_slices),
    }


def demand_of(gpu_share: Json) -> Demand:
    """Return the demand that a `GpuShare` object lists.

    Raises:
        ValueError, KeyError: where the object is none that gpuslice wrote.
    """
    spec = gpu_share["spec"]
    return Demand(share=parse_share(spec["share"]), slices=max(1, int(spec["slices"])))


def gpu_share(demand: Demand) -> dict[str, Any]:
    """Return the `GpuShare` object for a demand."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.GPU_SHARE_KIND,
        "metadata": {"name": str(demand.share)},
        "spec": {"share": str(demand.share), "slices": demand.slices},
    }


def kinds_mib(ledgers: Mapping[names.NodeName, Ledger], default_mib: int) -> tuple[int, ...]:
    """Return the memory of each kind of GPU in the cluster, `default_mib` while none is known."""
    known = {gpu.memory_mib for ledger in ledgers.values() for gpu in ledger.gpus}
    return tuple(sorted(known)) or (default_mib,)


def with_status(gpu_node: Json, ledger: Ledger) -> dict[str, Any]:
    """Return a `GpuNode` object with a ledger's status in the place of its own."""
    return {**gpu_node, "status": status_of(ledger)}
