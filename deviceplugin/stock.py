# SPDX-License-Identifier: Apache-2.0
"""The GPUs a node has or had: what the hardware says, and what claims still name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from deviceplugin import inventory as inventories
from deviceplugin.inventory import GONE, Inventory
from gpuslice.contract import gpunode
from gpuslice.contract.ledger import Ledger
from gpuslice.contract.names import NodeName
from gpuslice.contract.slices import SliceRule

Json = Mapping[str, Any]


def known(found: Inventory | None, gpu_node: Json | None) -> Inventory | None:
    """Return all GPUs whose tokens must be shown, None while nothing is known.

    Args:
        found: what the hardware says; None before the first look.
        gpu_node: the ledger's object. Its GPUs that a claim names stay, though the hardware is
            silent about them: kubelet must not miss a token that a pod has.
    """
    if gpu_node is None:
        return found
    recorded = inventories.inventory_of(gpu_node.get("spec") or {})
    if found is None:
        gone = recorded.gpus
    else:
        claimed = {
            part["gpu"]
            for claim in (gpu_node.get("status") or {}).get("claims") or ()
            for part in claim["shape"]
        }
        gone = tuple(
            gpu for gpu in recorded.gpus if gpu.uuid in claimed and not found.find(gpu.uuid)
        )
    silent = tuple(dataclasses.replace(gpu, healthy=False, reason=GONE) for gpu in gone)
    return Inventory(gpus=(*(found.gpus if found else ()), *silent))


def ledger_of(
    node: NodeName, inventory: Inventory, rule: SliceRule, gpu_node: Json | None
) -> Ledger:
    """Return the ledger with the GPUs as they are now, and the claims as they were read."""
    if gpu_node is None:
        return Ledger(
            node=node, gpus=inventories.ledger_gpus(inventory, rule), claims=(), serving=False
        )
    return gpunode.ledger_of({**gpu_node, "spec": inventories.spec_of(inventory, rule, mode="")})
