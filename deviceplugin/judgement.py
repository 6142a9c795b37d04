# SPDX-License-Identifier: Apache-2.0
"""One look at everything that is known, and what follows: for the ledger, and for kubelet's calls.

Several threads ask: the agent's, kubelet's when it asks for what isn't known, the hardware's. One
lock makes each look a whole, so that an older one never replaces a newer one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from deviceplugin import stock
from deviceplugin.allocator import Allocator
from deviceplugin.caches import Caches
from deviceplugin.devices import DeviceBoard, TooManyTokensError
from deviceplugin.inventory import Inventory, inventory_of
from deviceplugin.patience import Patience
from deviceplugin.readback import Readback
from deviceplugin.reconciliation import Outcome, Sight, reconcile
from deviceplugin.records import LOOK_SECONDS, Records
from deviceplugin.rules import Rules
from gpuslice.contract.ledger import Ledger
from gpuslice.contract.names import NodeName
from gpuslice.runtime import logs
from gpuslice.runtime.kube.errors import KubeError
from gpuslice.runtime.kube.resources import Json

log = logs.get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What should be."""

    gpu_node: Json | None
    """The ledger's object as it was read; None where there is none."""
    inventory: Inventory
    outcome: Outcome


class Judge:
    """Looks and decides; writes nothing but kubelet's view."""

    def __init__(
        self,
        node: NodeName,
        rules: Rules,
        *,
        records: Records,
        caches: Caches,
        allocator: Allocator,
        board: DeviceBoard,
        readback: Readback,
        inventory: Callable[[], Inventory | None],
        recall: Callable[[Inventory], None],
        is_starting: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """Be ready to look.

        Args:
            node: its name.
            rules: from the settings.
            records: for fresh reads.
            caches: what the API server has told.
            allocator: is kept informed.
            board: shows the tokens, and knows whether kubelet listens.
            readback: knows who got which tokens.
            inventory: what is known of the hardware, None before the first look.
            recall: told once what the ledger knew of the hardware before this start.
            is_starting: whether the first look may still be under way: till then GPUs that are
                only known from the ledger are not called missing.
            clock: seconds, monotonic.
        """
        self._node = node
        self._rules = rules
        self._records = records
        self._caches = caches
        self._allocator = allocator
        self._board = board
        self._readback = readback
        self._inventory = inventory
        self._recall = recall
        self._is_starting = is_starting
        self._recalled = False
        self._clock = clock
        self.lock = threading.RLock()
        self.patience = Patience(rules.limits)
        """To be used with the lock held."""
        self.is_draining = False
        """This plugin is going: nobody should count on it."""

    def use(self, rules: Rules) -> None:
        """Decide by other rules from now on."""
        with self.lock:
            self._rules = rules
            self.patience.use(rules.limits)

    def decide(self) -> Decision | None:
        """Look, inform the allocator, and return what should be.

        Returns:
            None while the API server or the GPUs have not been looked at.
        """
        with self.lock:
            gpu_node = self._caches.gpu_node
            if gpu_node is not None and not self._recalled:
                self._recalled = True
                self._recall(inventory_of(gpu_node.get("spec") or {}))
            found = self._inventory()
            inventory = stock.known(found, gpu_node)
            if inventory is None or (found is None and self._is_starting()):
                return None
            ledger = stock.ledger_of(self._node, inventory, self._rules.slice_rule, gpu_node)
            self._show(ledger)
            if not self._caches.are_ready:
                self._allocator.update(ledger, tokens=self._readback.tokens, unclaimed=())
                return None
            serving = self._board.streaming and not self.is_draining
            ledger = ledger.with_serving(serving=serving)
            sight = self._sight(ledger)
            outcome = reconcile(ledger, sight, self._rules.resource)
            self._allocator.update(
                outcome.ledger,
                tokens=outcome.tokens,
                unclaimed=outcome.unclaimed,
                unadopted=outcome.unadopted,
                bound=sight.pods.keys(),
                over=outcome.over,
            )
            return Decision(gpu_node=gpu_node, inventory=inventory, outcome=outcome)

    def look_again(self) -> None:
        """Read the ledger and this node's pods afresh: kubelet asks for what isn't known."""
        try:
            gpu_node = self._records.read(LOOK_SECONDS)
            if gpu_node is not None:
                self._caches.gpu_nodes.put_back(gpu_node)
            for pod in self._records.pods_here():
                self._caches.pods.put_back(pod)
        except KubeError as error:
            log.warning("fresh_look_failed", node=self._node, error=str(error))
        self.decide()

    def _show(self, ledger: Ledger) -> None:
        try:
            self._board.show(ledger.gpus)
        except TooManyTokensError as error:
            log.exception("tokens_not_shown", node=self._node, error=str(error))

    def _sight(self, ledger: Ledger) -> Sight:
        return Sight(
            pods=self._caches.pods_by_uid(),
            tokens=self._readback.tokens,
            released=self._readback.released,
            ended=self._caches.ended(),
            verdicts=self.patience.verdicts(ledger),
            buried=self.patience.buried(self._clock(), serving=ledger.serving),
        )
