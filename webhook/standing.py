# SPDX-License-Identifier: Apache-2.0
"""The policy of this moment: settings, joined with what the caches know of the cluster.

Made anew only when the inventory or the list of shares changes: admission reads it in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from gpuslice.contract.placement import Policy
from gpuslice.contract.shares import Share
from gpuslice.runtime.kube.objects import Change
from gpuslice.runtime.kube.resources import Json
from gpuslice.runtime.kube.watch import WatchCache
from gpuslice.runtime.settings import Settings
from webhook import nodes, shares
from webhook.policies import AdmissionPolicy, Fleet, fleet_of


def policy_of(
    settings: Settings, fleet: Fleet, shares_in_use: frozenset[Share] = frozenset()
) -> AdmissionPolicy:
    """Return the policy that settings and cluster make."""
    return AdmissionPolicy(
        enabled=settings.gpu_sharing,
        slice_resource=settings.resource_name,
        rule=settings.slice_rule,
        min_share_mib=settings.min_share_mib,
        default_gpu_memory_mib=settings.default_gpu_memory_mib,
        fleet=fleet,
        shares_in_use=shares_in_use,
        most_shares=settings.max_shares,
        placement=Policy(settings.placement),
        default_scheduler=settings.scheduler_name,
        adopted_schedulers=frozenset(settings.adopt_schedulers),
        sidecars=frozenset(settings.sidecar_containers),
        whole_gpu_resource=settings.whole_gpu_resource or None,
        runtime_class=settings.runtime_class_name or None,
        template_warnings=settings.template_warnings,
        hides_gpus=settings.hide_other_gpus,
    )


class CurrentPolicy:
    """Holds the policy of this moment."""

    def __init__(
        self,
        settings: Settings,
        *,
        gpu_nodes: WatchCache,
        gpu_shares: WatchCache,
    ) -> None:
        """Listen to both caches, which must not be started yet.

        Args:
            settings: as read at start.
            gpu_nodes: of `nodes.watch_gpu_nodes`.
            gpu_shares: the list of shares in use.
        """
        self._settings = settings
        self._gpu_nodes = gpu_nodes
        self._gpu_shares = gpu_shares
        self._listeners: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self._fleet = Fleet()
        self._policy = policy_of(settings, self._fleet)
        gpu_nodes.listen(self._gpu_node_changed)
        gpu_shares.listen(self._gpu_share_changed)

    def __call__(self) -> AdmissionPolicy:
        """Return it."""
        return self._policy

    def on_new_fleet(self, listener: Callable[[], object]) -> None:
        """Call a function whenever the cluster's GPUs are others than before."""
        self._listeners.append(listener)

    def standing_shares(self) -> Mapping[Share, int]:
        """Return the shares that are always listed, with their k on the cluster's GPUs."""
        policy = self._policy
        return {
            share: policy.rule.slices_of_share(share, policy.kinds_mib)
            for share in self._settings.standing_shares
        }

    def _gpu_node_changed(self, _change: Change, before: Json | None, after: Json | None) -> None:
        old, new = nodes.ledger_in(before), nodes.ledger_in(after)
        same_mode = nodes.mode_in(before) == nodes.mode_in(after)
        if same_mode and (old and old.gpus) == (new and new.gpus):
            return
        fleet = fleet_of(nodes.ledgers_in(self._gpu_nodes), nodes.modes_in(self._gpu_nodes))
        if fleet != self._fleet:
            self._fleet = fleet
            self._renew()
            for listener in self._listeners:
                listener()

    def _gpu_share_changed(self, change: Change, _before: Json | None, _after: Json | None) -> None:
        if change is not Change.MODIFIED:
            self._renew()

    def _renew(self) -> None:
        with self._lock:
            in_use = shares.shares_in(self._gpu_shares)
            self._policy = policy_of(self._settings, self._fleet, in_use)
