# SPDX-License-Identifier: Apache-2.0
"""Every string that gpuslice puts on a wire, once.

The manifests under deploy/ are tested against this module.
"""

from __future__ import annotations

from typing import Final, NewType

GpuUuid = NewType("GpuUuid", str)
"""A GPU or MIG instance as NVML names it; e.g. ``GPU-5f1c7d8e-...`` or ``MIG-...``."""

NodeName = NewType("NodeName", str)
"""A Kubernetes node's name, which is its `GpuNode`'s name too."""

PodUid = NewType("PodUid", str)
"""A pod's ``metadata.uid``: its name may come back, this never does."""

ResourceName = NewType("ResourceName", str)
"""A resource that a container can ask for; e.g. ``nvidia.com/gpu-slice``."""

GROUP: Final = "gpuslice.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
GPU_NODE_KIND: Final = "GpuNode"
GPU_SHARE_KIND: Final = "GpuShare"

SLICE_RESOURCE: Final = ResourceName("nvidia.com/gpu-slice")
"""The default of the setting `resourceName`."""
FIT_PREFIX: Final = f"{GROUP}/fit-"
WHOLE_GPU_RESOURCE: Final = ResourceName("nvidia.com/gpu")
MIG_RESOURCE_PREFIX: Final = "nvidia.com/mig-"

# What a user writes on a pod. Each key is also read with our own prefix, which wins.
FRACTION: Final = "gpu-fraction"
MEMORY: Final = "gpu-memory"
DEVICES: Final = "gpu-fraction-num-devices"
CONTAINER: Final = "gpu-fraction-container-name"
MPS: Final = "mps"
PLACEMENT: Final = f"{GROUP}/placement"
USER_KEYS: Final = (FRACTION, MEMORY, DEVICES, CONTAINER)

# What admission writes on a pod.
SHARE_LABEL: Final = f"{GROUP}/share"

# What the arbiter and the agent write on a pod, and nobody else may.
GPU_ANNOTATION: Final = f"{GROUP}/gpu"
MEMORY_MIB_ANNOTATION: Final = f"{GROUP}/memory-mib"
SLICES_ANNOTATION: Final = f"{GROUP}/slices"
ARBITER_ANNOTATIONS: Final = (GPU_ANNOTATION, MEMORY_MIB_ANNOTATION, SLICES_ANNOTATION)

# On a Node, by its agent.
LEDGER_ANNOTATION: Final = f"{GROUP}/ledger"
PARTIAL_ROOM_LABEL: Final = f"{GROUP}/partial-room"
EMPTY_GPUS_LABEL: Final = f"{GROUP}/empty-gpus"
PRODUCT_LABEL: Final = f"{GROUP}/product"
NODE_MEMORY_LABEL: Final = f"{GROUP}/memory-mib"
MODE_LABEL: Final = f"{GROUP}/mode"

# On a GpuNode, by a person.
CORDON_ANNOTATION: Final = f"{GROUP}/cordon"

# In the container, by the device plugin.
ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
ENV_NUM_OF_GPUS: Final = "RUNAI_NUM_OF_GPUS"
ENV_GPU_PORTION: Final = "GPU_PORTION"
ENV_SHARE: Final = "GPUSLICE_SHARE"
ENV_GPU: Final = "GPUSLICE_GPU"
ENV_MEMORY_LIMIT_MIB: Final = "GPUSLICE_MEMORY_LIMIT_MIB"
ENV_SLICES: Final = "GPUSLICE_SLICES"

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
"""kubelet's mark on the API's copy of a static pod."""


def prefixed(key: str) -> str:
    """Return a user's annotation key under our own prefix; e.g. ``gpuslice.dev/gpu-fraction``."""
    return f"{GROUP}/{key}"
