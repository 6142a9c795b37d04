# SPDX-License-Identifier: Apache-2.0
"""The one place that answers kubelet: what is known, under a lock, and the grants in flight.

kubelet admits no other pod while it waits for an answer, so answers come from memory.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from deviceplugin import allocation
from deviceplugin.allocation import Grant, Reason, Refusal, View
from gpuslice.contract.ledger import Claim, ClaimState, Ledger
from gpuslice.contract.names import PodUid
from gpuslice.contract.placement import Demand

UNKNOWN_POD_SECONDS = 10.0
"""How long a grant without a claim is kept though its pod is in no list yet."""

_WORTH_A_LOOK = (Reason.NO_CLAIM, Reason.AMBIGUOUS)
"""What a fresh read of the API server may change."""


class Allocator:
    """Prefers and checks tokens by the newest view."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        look_again: Callable[[], None] = lambda: None,
        on_grant: Callable[[Grant], None] = lambda _: None,
    ) -> None:
        """Start with a ledger, usually one without claims.

        Args:
            ledger: the GPUs of this node.
            clock: seconds, monotonic.
            look_again: one short read of the API server, with a deadline, that ends in `update`;
                called before tokens are refused for want of a claim.
            on_grant: told of each grant, after it is in the view.
        """
        self._lock = threading.Lock()
        self._view = View(ledger=ledger)
        self._clock = clock
        self.look_again = look_again
        self.on_grant = on_grant

    @property
    def view(self) -> View:
        """What is known now."""
        with self._lock:
            return self._view

    def update(
        self,
        ledger: Ledger,
        *,
        tokens: Mapping[PodUid, frozenset[str]],
        unclaimed: tuple[Demand, ...],
        unadopted: tuple[Claim, ...] = (),
        bound: Collection[PodUid] = (),
        over: Collection[Claim] = (),
    ) -> None:
        """Replace what is known; grants in flight that it accounts for are over."""
        with self._lock:
            view = dataclasses.replace(
                self._view,
                ledger=ledger,
                tokens=tokens,
                unclaimed=unclaimed,
                unadopted=unadopted,
                bound=frozenset(bound),
                served=self._served(ledger) | tokens.keys(),
            )
            before = self._clock() - UNKNOWN_POD_SECONDS
            self._view = allocation.settle(view, before_seconds=before, over=over)

    def _served(self, ledger: Ledger) -> frozenset[PodUid]:
        """Return the pods with claims that had tokens before.

        One that leaves when it is first seen had them, or never will: no grant of this process is
        in flight for it.
        """
        seen = {claim.pod.uid for claim in self._view.ledger.claims}
        return frozenset(
            claim.pod.uid
            for claim in ledger.claims
            if claim.pod.uid in self._view.served
            or (claim.state is ClaimState.LEAVING and claim.pod.uid not in seen)
        )

    def prefer(
        self, *, available: Collection[str], must_include: Collection[str], size: int
    ) -> tuple[str, ...]:
        """Return the tokens that kubelet should give; never fails."""
        if not allocation.knows_asker(self.view, size):
            self.look_again()
        return allocation.prefer(
            self.view, available=available, must_include=must_include, size=size
        )

    def allocate(self, ids: Sequence[str]) -> Grant | Refusal:
        """Return the grant of these tokens, which is in flight then, or why there is none."""
        answer = self._try(ids)
        if isinstance(answer, Refusal) and answer.reason in _WORTH_A_LOOK:
            self.look_again()
            answer = self._try(ids)
        if isinstance(answer, Grant):
            self.on_grant(answer)
        return answer

    def _try(self, ids: Sequence[str]) -> Grant | Refusal:
        with self._lock:
            answer = allocation.check(self._view, ids)
            if isinstance(answer, Grant):
                former = frozenset(
                    uid
                    for uid, tokens in self._view.tokens.items()
                    if not answer.tokens.isdisjoint(tokens)
                )
                answer = dataclasses.replace(answer, since_seconds=self._clock(), former=former)
                self._view = dataclasses.replace(
                    self._view, in_flight=(*self._view.in_flight, answer)
                )
            return answer
