# SPDX-License-Identifier: Apache-2.0
"""What autoscalers must be told of a node that isn't there yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

TAG_PREFIX: Final = "k8s.io/cluster-autoscaler/node-template/resources/"
"""On an Auto Scaling group. Source: kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws."""
TAG_CHARACTERS: Final = 128
"""The longest key of a tag that AWS takes."""
INSTANCE_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"


def node_template_tags(resources: Mapping[Any, int]) -> dict[str, str]:
    """Return the tags by which cluster-autoscaler knows what a group's next node offers."""
    return {f"{TAG_PREFIX}{name}": str(value) for name, value in resources.items()}


def node_overlay(resources: Mapping[Any, int], instance_types: tuple[str, ...]) -> dict[str, Any]:
    """Return the object by which Karpenter knows the same (feature gate NodeOverlay).

    Source: karpenter.sh, NodeOverlays, v1alpha1.
    """
    return {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": f"gpuslice-{instance_types[0].replace('.', '-').lower()}"},
        "spec": {
            "requirements": [
                {"key": INSTANCE_TYPE_LABEL, "operator": "In", "values": list(instance_types)}
            ],
            "capacity": {str(name): str(value) for name, value in resources.items()},
        },
    }
