# SPDX-License-Identifier: Apache-2.0
"""Makes the Node say what follows from the ledger; one thread's, so that patches keep order."""

from __future__ import annotations

from typing import Protocol

from deviceplugin import publication
from deviceplugin.caches import Caches
from deviceplugin.records import Records
from deviceplugin.rules import Rules
from gpuslice.contract import gpunode, pods
from gpuslice.contract.ledger import Ledger
from gpuslice.contract.placement import Demand
from gpuslice.runtime import logs
from gpuslice.runtime.kube.errors import ConflictError
from gpuslice.runtime.kube.resources import Json

log = logs.get(__name__)


class Warner(Protocol):
    """Tells people that a node's GPUs are sold twice."""

    def sells_whole_gpus(self, count: int) -> None:
        """Tell that another plugin sells this node's GPUs as a whole."""


class Publisher:
    """Writes one Node."""

    def __init__(self, rules: Rules, records: Records, caches: Caches, warner: Warner) -> None:
        """Write by these rules."""
        self._rules = rules
        self._records = records
        self._caches = caches
        self._warner = warner
        self._whole_gpus = 0

    def use(self, rules: Rules) -> None:
        """Write by other rules from now on."""
        self._rules = rules

    def publish(self, gpu_node: Json) -> None:
        """Patch the Node where it differs.

        Args:
            gpu_node: the newest ledger that is written; the Node will name its version.

        Raises:
            ConflictError: where somebody else wrote the Node first; it is known as it is now.
        """
        node = self._caches.node
        if node is None:
            return
        ledger = gpunode.ledger_of(gpu_node)
        bound = list(self._caches.pods_by_uid().values())
        demands = publication.demands_of(
            [*self._standing(ledger), *self._caches.demands()], bound, self._rules.resource
        )
        patch = publication.node_patch(
            node,
            fits_wanted=publication.values(ledger, demands, bound, self._rules.resource),
            labels_wanted=publication.labels(ledger, self._rules.mode),
            ledger_version=pods.meta_of(gpu_node)["resourceVersion"],
        )
        if patch is not None:
            self._write(patch)
        self._mind_whole_gpus(node)

    def _write(self, patch: Json) -> None:
        try:
            self._caches.nodes.put_back(self._records.patch_node(patch))
        except ConflictError:
            fresh = self._records.read_node()
            if fresh is not None:
                self._caches.nodes.put_back(fresh)
            raise

    def _standing(self, ledger: Ledger) -> list[Demand]:
        """Return the demands of the shares that every node shows."""
        kinds = sorted({gpu.memory_mib for gpu in ledger.gpus}) or [
            self._rules.default_gpu_memory_mib
        ]
        rule = self._rules.slice_rule
        return [
            Demand(share=share, slices=rule.slices_of_share(share, kinds))
            for share in self._rules.shares
        ]

    def _mind_whole_gpus(self, node: Json) -> None:
        count = publication.whole_gpus_sold(node)
        if count != self._whole_gpus:
            self._whole_gpus = count
            log.warning("whole_gpus_sold_beside", count=count)
            self._warner.sells_whole_gpus(count)
