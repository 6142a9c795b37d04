# SPDX-License-Identifier: Apache-2.0
"""Binds, answered over caches that lag and ledgers that others write."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gpuslice.contract.ledger import ClaimState, Ledger
from gpuslice.contract.names import NodeName, PodUid
from tests.unit.webhook.ledgermaking import (
    NODE,
    Store,
    View,
    build_arbiter,
    build_binding,
    build_ledger,
    build_sharing_pod,
    with_claim,
)
from webhook.arbiter import MAX_SWAPS, UnreachableError, Verdict

PLAIN = NodeName("no-gpus")


def store_of(*ledgers: Ledger, **shares: str | None) -> Store:
    store = Store(*ledgers)
    for uid, share in shares.items():
        store.pods[PodUid(uid)] = build_sharing_pod(uid, share)
    return store


def reason(verdict: Verdict) -> str | None:
    return None if verdict.denial is None else verdict.denial.reason


def test_a_grant_costs_one_write_and_no_read_and_tells_the_gpu() -> None:
    store = store_of(build_ledger(2), a="0.5")
    view = View(store)
    verdict = build_arbiter(view).bind(build_binding("a"))
    assert verdict.outcome == "granted"
    assert verdict.annotations == {
        "gpuslice.dev/gpu": "GPU-node-a-0",
        "gpuslice.dev/memory-mib": "11517",
        "gpuslice.dev/slices": "50",
    }
    assert (store.reads, store.writes) == (0, 1)
    assert store.ledger().claims[0].state is ClaimState.RESERVED
    assert view.shown_calls == [(NODE, store.version, "gpuslice.dev/fit-0.5")]


def test_a_pod_that_the_cache_lacks_is_read_once() -> None:
    store = store_of(build_ledger(), a="0.5")
    view = View(store)
    view.labelled = False
    assert build_arbiter(view).bind(build_binding("a")).outcome == "granted"
    assert (store.reads, store.writes) == (1, 1)


def test_a_second_bind_of_a_pod_gets_the_same_gpu_and_writes_nothing() -> None:
    store = store_of(build_ledger(2), a="0.5")
    arbiter = build_arbiter(View(store))
    first = arbiter.bind(build_binding("a"))
    second = arbiter.bind(build_binding("a"))
    assert second.outcome == "granted-again"
    assert first.annotations == second.annotations
    assert [claim.binds for claim in store.ledger().claims] == [2]


def test_a_bind_that_is_given_up_leaves_the_claim_to_a_later_one() -> None:
    """The scheduler tried again while the first bind still waited for the Node."""
    store = store_of(build_ledger(), a="0.5")

    class Slow(View):
        def wait_until_shown(self, *_: object) -> bool:
            if len(self.shown_calls) < 1:
                self.shown_calls.append((NODE, 0, ""))
                assert arbiter.bind(build_binding("a")).outcome == "granted-again"
                return False
            return True

    arbiter = build_arbiter(Slow(store))
    assert reason(arbiter.bind(build_binding("a"))) == "not-shown"
    assert [claim.pod.uid for claim in store.ledger().claims] == ["a"]


def test_binds_to_nodes_without_gpus_ask_nobody() -> None:
    store = store_of(build_ledger(), a=None, b="0.5")
    arbiter = build_arbiter(View(store))
    assert arbiter.bind(build_binding("a", PLAIN)).outcome == "passed"
    assert arbiter.bind(build_binding("unknown", PLAIN)).outcome == "passed"
    assert reason(arbiter.bind(build_binding("b", PLAIN))) == "no-gpus"
    assert (store.reads, store.writes) == (0, 0)


def test_an_ordinary_pod_passes_on_a_gpu_node() -> None:
    store = store_of(build_ledger())
    store.pods[PodUid("a")] = build_sharing_pod("a", None, asks_slices=False)
    assert build_arbiter(View(store)).bind(build_binding("a")).outcome == "passed"
    assert store.writes == 0


def test_slices_that_admission_never_saw_are_denied() -> None:
    store = store_of(build_ledger(), a=None)
    assert reason(build_arbiter(View(store)).bind(build_binding("a"))) == "not-admitted"


def test_a_pod_that_is_gone_or_bound_elsewhere_gets_no_claim() -> None:
    store = store_of(build_ledger())
    store.pods[PodUid("b")] = build_sharing_pod("b", "0.5", node=PLAIN)
    arbiter = build_arbiter(View(store))
    assert reason(arbiter.bind(build_binding("a"))) == "pod-gone"
    assert reason(arbiter.bind(build_binding("b"))) == "bound"
    assert store.writes == 0


def test_a_dry_run_says_what_would_be_and_writes_nothing() -> None:
    store = store_of(with_claim(build_ledger(), "x", "0.5"), a="0.5", b="0.6")
    view = View(store)
    arbiter = build_arbiter(view)
    granted = arbiter.bind(build_binding("a", dry_run=True))
    assert granted.annotations["gpuslice.dev/slices"] == "50"
    assert reason(arbiter.bind(build_binding("b", dry_run=True))) == "no-room"
    assert store.writes == 0
    assert view.shown_calls == []
    assert view.waits == 0


def test_a_stale_cache_loses_the_swap_and_decides_again_on_what_is_there() -> None:
    store = store_of(build_ledger(), a="0.6")
    view = View(store)
    view.lagging = True
    store.put(with_claim(store.ledger(), "other", "0.5"))
    verdict = build_arbiter(view).bind(build_binding("a"))
    assert reason(verdict) == "no-room"
    assert [claim.pod.uid for claim in store.ledger().claims] == ["other"]


def test_endless_contention_ends_in_a_denial() -> None:
    store = store_of(build_ledger(), a="0.1")

    class Contended(View):
        def refresh(self, node: NodeName) -> None:
            super().refresh(node)
            self.store.put(self.store.ledger(node))

    view = Contended(store)
    view.lagging = True
    store.put(store.ledger())
    assert reason(build_arbiter(view).bind(build_binding("a"))) == "contended"
    assert store.reads == MAX_SWAPS


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            with_claim(build_ledger(), "x", "0.6", state=ClaimState.LEAVING),
            build_ledger(),
            id="a claim ends",
        ),
        pytest.param(build_ledger(serving=False), build_ledger(), id="the plugin serves"),
        pytest.param(
            with_claim(build_ledger(), "x", "11517mi", state=ClaimState.RESERVED),
            with_claim(build_ledger(), "x", "11517mi", state=ClaimState.HELD),
            id="an unlike reservation is held",
        ),
    ],
)
def test_a_bind_waits_for_the_change_that_lets_it_through(before: Ledger, after: Ledger) -> None:
    store = store_of(before, a="0.5")
    view = View(store)
    view.on_wait = lambda: store.put(after)
    verdict = build_arbiter(view, room_seconds=5.0).bind(build_binding("a"))
    assert verdict.outcome == "granted"
    assert view.waits == 1


def test_a_change_that_never_comes_ends_in_the_denial() -> None:
    store = store_of(with_claim(build_ledger(), "x", "0.6", state=ClaimState.LEAVING), a="0.5")
    assert reason(build_arbiter(View(store)).bind(build_binding("a"))) == "no-room"
    assert store.writes == 0


def test_too_many_waiters_are_denied_at_once() -> None:
    store = store_of(build_ledger(serving=False), a="0.5", b="0.5")
    view = View(store)
    arbiter = build_arbiter(view, room_seconds=30.0, waiters=1)
    waiting, verdicts = threading.Event(), list[Verdict]()
    view.on_wait = waiting.set
    thread = threading.Thread(target=lambda: verdicts.append(arbiter.bind(build_binding("a"))))
    thread.start()
    assert waiting.wait(5)
    assert reason(arbiter.bind(build_binding("b"))) == "not-serving"
    store.put(build_ledger())
    thread.join(5)
    assert [verdict.outcome for verdict in verdicts] == ["granted"]


def test_too_many_binds_are_denied_at_once() -> None:
    store = store_of(build_ledger(serving=False), a="0.5", b="0.5")
    view = View(store)
    arbiter = build_arbiter(view, room_seconds=30.0, binds=1)
    waiting = threading.Event()
    view.on_wait = waiting.set
    thread = threading.Thread(target=arbiter.bind, args=[build_binding("a")])
    thread.start()
    assert waiting.wait(5)
    assert reason(arbiter.bind(build_binding("b"))) == "busy"
    assert arbiter.bind(build_binding("b", PLAIN)).denial is not None
    store.put(build_ledger())
    thread.join(5)
    assert arbiter.bind(build_binding("b")).outcome == "granted"


def test_a_claim_that_the_node_never_shows_is_taken_back() -> None:
    store = store_of(with_claim(build_ledger(), "x", "0.5"), a="0.5")
    view = View(store)
    view.shown = False
    assert reason(build_arbiter(view).bind(build_binding("a"))) == "not-shown"
    assert [claim.pod.uid for claim in store.ledger().claims] == ["x"]


def test_a_claim_of_an_earlier_bind_is_never_taken_back() -> None:
    """That bind may have got through although its answer came late."""
    store = store_of(build_ledger(), a="0.5")
    view = View(store)
    arbiter = build_arbiter(view)
    arbiter.bind(build_binding("a"))
    view.shown = False
    assert reason(arbiter.bind(build_binding("a"))) == "not-shown"
    assert [claim.pod.uid for claim in store.ledger().claims] == ["a"]


def test_an_api_server_that_does_not_answer_means_a_denial_and_no_bind() -> None:
    store = store_of(build_ledger(), a="0.5")

    class Away(View):
        def swap(self, snapshot: object, ledger: object) -> int:
            raise UnreachableError("timed out")

    verdict = build_arbiter(Away(store)).bind(build_binding("a"))
    assert verdict.denial is not None
    assert verdict.denial.code == 503


def test_replicas_at_once_never_promise_a_gpu_twice() -> None:
    """Eight threads over four replicas, forty pods, room for twelve."""
    pods = {f"p{number}": "0.3" for number in range(40)}
    store = store_of(build_ledger(4), **pods)
    arbiters = [build_arbiter(View(store)) for _ in range(4)]
    verdicts: dict[str, Verdict] = {}
    todo = list(pods)
    gate = threading.Barrier(8)

    def work(bind: Callable[[str], Verdict]) -> None:
        gate.wait(10)
        while todo:
            try:
                uid = todo.pop()
            except IndexError:
                return
            verdicts[uid] = bind(uid)

    threads = [
        threading.Thread(
            target=work, args=[lambda uid, it=arbiters[number % 4]: it.bind(build_binding(uid))]
        )
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    granted = {uid for uid, verdict in verdicts.items() if verdict.outcome == "granted"}
    assert len(granted) == 12
    assert {claim.pod.uid for claim in store.ledger().claims} == granted
    assert store.ledger().overclaimed() == ()
