# SPDX-License-Identifier: Apache-2.0
"""How long things have been as they are, on the agent's own clock: pure, time is handed in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deviceplugin.reconciliation import Verdict
from gpuslice.contract.ledger import ClaimState, Ledger, PodRef
from gpuslice.contract.names import PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long what is waited for, in seconds."""

    pod_gone: float = 10.0
    """A force-deleted pod's claim is kept: kubelet kills its processes after 2 s (measured)."""
    reservation: float = 120.0
    """A reservation of an unbound pod is kept: longer than any API request lives."""
    first_look: float = 2.0
    """Before a reserved pod that isn't here is looked for."""
    looks: float = 15.0
    """Between such looks."""


class Patience:
    """Knows since when a claim's pod has been gone, or not here. One thread's."""

    def __init__(self, limits: Limits) -> None:
        """Start with no observation: what a former process had seen doesn't count."""
        self._limits = limits
        self._gone: dict[PodUid, float] = {}
        self._was_serving = True
        self._unseen: dict[PodUid, float] = {}
        self._binds: dict[PodUid, int] = {}
        self._looked: dict[PodUid, float] = {}
        self._verdicts: dict[PodUid, Verdict] = {}

    def use(self, limits: Limits) -> None:
        """Wait by other limits from now on."""
        self._limits = limits

    def observe(self, ledger: Ledger, unseen: Iterable[PodRef], now: float) -> None:
        """Note what a reconciled ledger shows at a moment."""
        gone = {claim.pod.uid for claim in ledger.claims if claim.pod_gone}
        missing = {pod.uid for pod in unseen}
        self._gone = {uid: self._gone.get(uid, now) for uid in gone}
        binds = {claim.pod.uid: claim.binds for claim in ledger.claims}
        renewed = {uid for uid in missing if self._binds.get(uid, binds[uid]) != binds[uid]}
        self._binds = {uid: binds[uid] for uid in missing}
        self._unseen = {
            uid: now if uid in renewed else self._unseen.get(uid, now) for uid in missing
        }
        missing -= renewed  # what was found out of an earlier bind doesn't count
        self._looked = {uid: at for uid, at in self._looked.items() if uid in missing}
        waiting = {claim.pod.uid for claim in ledger.claims if claim.state is ClaimState.RESERVED}
        self._verdicts = {
            uid: each
            for uid, each in self._verdicts.items()
            if uid in waiting and uid not in renewed
        }

    def buried(self, now: float, *, serving: bool) -> frozenset[PodUid]:
        """Return the force-deleted pods whose memory must be free by now.

        While kubelet is away it kills nobody: the time counts from its return.
        """
        if not (serving and self._was_serving):
            self._gone = dict.fromkeys(self._gone, now)
        self._was_serving = serving
        return frozenset(
            uid for uid, since in self._gone.items() if now - since >= self._limits.pod_gone
        )

    def verdicts(self, ledger: Ledger) -> dict[PodUid, Verdict]:
        """Return what is known of reserved pods that are not here.

        Not of those that another bind was granted since: what was found is of the former bind.
        """
        binds = {claim.pod.uid: claim.binds for claim in ledger.claims}
        return {
            uid: each
            for uid, each in self._verdicts.items()
            if binds.get(uid) == self._binds.get(uid)
        }

    def to_look_for(self, unseen: Iterable[PodRef], now: float) -> list[PodRef]:
        """Return the pods whose whereabouts should be read now; each is returned once a while."""
        due = [pod for pod in unseen if pod.uid not in self._verdicts and self._due(pod.uid) <= now]
        self._looked.update({pod.uid: now for pod in due})
        return due

    def judge(self, pod: PodRef, found: Verdict | None, now: float) -> None:
        """Take what a fresh read said of a reserved pod; None where it is on this node."""
        if found is None or pod.uid not in self._unseen:
            return
        if found is Verdict.UNBOUND and now - self._unseen[pod.uid] < self._limits.reservation:
            return
        self._verdicts[pod.uid] = found

    def next_due(self, now: float) -> float:
        """Return in how many seconds something will have lasted long enough; infinite if never."""
        dues = [since + self._limits.pod_gone for since in self._gone.values()]
        dues += [self._due(uid) for uid in self._unseen if uid not in self._verdicts]
        return max(0.0, min(dues, default=float("inf")) - now)

    def _due(self, uid: PodUid) -> float:
        since = self._unseen.get(uid)
        if since is None:
            return float("inf")
        looked = self._looked.get(uid)
        if looked is None:
            return since + self._limits.first_look
        end = since + self._limits.reservation
        return end if looked < end <= looked + self._limits.looks else looked + self._limits.looks
