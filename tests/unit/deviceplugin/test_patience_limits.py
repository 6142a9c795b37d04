# SPDX-License-Identifier: Apache-2.0
"""Time limits run on the agent's own clock, from its own first sight."""

from __future__ import annotations

import math

from deviceplugin.patience import Limits, Patience
from deviceplugin.reconciliation import Verdict
from tests.unit.deviceplugin.claims import LEAVING, claim, gpu, ledger, ref, uid

GPUS = (gpu(0),)
GONE = ledger(GPUS, claim("a", "0.5", 50, *GPUS, state=LEAVING, pod_gone=True))
WAITING = ledger(GPUS, claim("a", "0.5", 50, *GPUS))


def test_a_force_deleted_pod_is_buried_after_its_time() -> None:
    patience = Patience(Limits())
    patience.observe(GONE, [], 100)
    assert patience.buried(109.9, serving=True) == frozenset()
    assert patience.next_due(104) == 6
    assert patience.buried(110, serving=True) == {uid("a")}


def test_the_time_of_a_force_deleted_pod_counts_from_kubelet_s_return() -> None:
    """While kubelet is away, nobody kills the pod's processes."""
    patience = Patience(Limits())
    patience.observe(GONE, [], 100)
    assert patience.buried(105, serving=False) == frozenset()
    assert patience.buried(150, serving=True) == frozenset()
    assert patience.buried(159.9, serving=True) == frozenset()
    assert patience.buried(160, serving=True) == {uid("a")}


def test_a_restart_counts_anew() -> None:
    """Its own clock knows nothing of what a former process saw."""
    patience = Patience(Limits())
    patience.observe(GONE, [], 5000)
    assert patience.buried(5009, serving=True) == frozenset()


def test_a_reserved_pod_that_is_not_here_is_looked_for_now_and_then() -> None:
    patience = Patience(Limits())
    patience.observe(WAITING, [ref("a")], 0)
    assert patience.to_look_for([ref("a")], 1.9) == []
    assert patience.to_look_for([ref("a")], 2) == [ref("a")]
    assert patience.to_look_for([ref("a")], 2.1) == []
    assert patience.next_due(2.1) == 14.9
    assert patience.to_look_for([ref("a")], 17) == [ref("a")]


def test_an_unbound_pod_s_reservation_ends_after_two_minutes_by_a_fresh_read() -> None:
    patience = Patience(Limits())
    patience.observe(WAITING, [ref("a")], 0)
    patience.judge(ref("a"), Verdict.UNBOUND, 119)
    assert patience.verdicts(WAITING) == {}
    patience.judge(ref("a"), Verdict.UNBOUND, 120)
    assert patience.verdicts(WAITING) == {uid("a"): Verdict.UNBOUND}


def test_what_is_gone_or_elsewhere_ends_at_once() -> None:
    for verdict in (Verdict.GONE, Verdict.ELSEWHERE):
        patience = Patience(Limits())
        patience.observe(WAITING, [ref("a")], 0)
        patience.judge(ref("a"), verdict, 2)
        assert patience.verdicts(WAITING) == {uid("a"): verdict}


def test_a_verdict_about_a_former_bind_counts_no_longer() -> None:
    """The reservation was granted to another bind since: that one may be on its way."""
    patience = Patience(Limits())
    patience.observe(WAITING, [ref("a")], 0)
    patience.judge(ref("a"), Verdict.UNBOUND, 120)
    assert patience.verdicts(WAITING.with_bind(uid("a"))) == {}


def test_a_verdict_ends_with_its_claim_and_a_pod_that_came_is_not_judged() -> None:
    patience = Patience(Limits())
    patience.observe(WAITING, [ref("a")], 0)
    patience.judge(ref("a"), Verdict.GONE, 2)
    patience.observe(ledger(GPUS), [], 3)
    assert patience.verdicts(WAITING) == {}
    patience.observe(WAITING, [], 4)
    patience.judge(ref("a"), Verdict.GONE, 5)
    assert patience.verdicts(WAITING) == {}
    assert patience.next_due(5) == math.inf


def test_looks_go_on_until_the_limit_and_one_falls_on_it() -> None:
    patience = Patience(Limits())
    patience.observe(WAITING, [ref("a")], 0)
    looked = []
    now = 0.0
    while now < 121:
        if patience.to_look_for([ref("a")], now):
            looked.append(now)
        now += max(0.5, patience.next_due(now))
    assert looked[0] == 2
    assert 120 in looked
