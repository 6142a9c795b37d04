# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import orjson
import pytest

from gpuslice.sim.apiserver.history import Watch
from gpuslice.sim.apiserver.store import StaleError, Store, TooOldError

THINGS = ("example.com", "things")
Json = dict[str, Any]


def thing(name: str = "a", **meta: Any) -> Json:
    return {"metadata": {"name": name, **meta}}


def told(watch: Watch) -> list[tuple[str, str, str]]:
    events = [orjson.loads(line) for line in watch.take(0) or ()]
    metas = [event["object"]["metadata"] for event in events]
    return [
        (event["type"], meta["name"], meta["resourceVersion"])
        for event, meta in zip(events, metas, strict=True)
    ]


def test_a_write_over_another_version_is_stale() -> None:
    store = Store()
    first = store.write(THINGS, thing(), replaces=None)
    second = store.write(THINGS, thing(), replaces=first)
    assert second.version == first.version + 1
    with pytest.raises(StaleError):
        store.write(THINGS, thing(), replaces=first)
    with pytest.raises(StaleError):
        store.write(THINGS, thing(), replaces=None)
    with pytest.raises(StaleError):
        store.remove(THINGS, first)
    assert store.get(THINGS, "", "a") is second


def test_a_failed_write_is_told_to_nobody() -> None:
    store = Store()
    store.write(THINGS, thing(), replaces=None)
    watch = store.watch(THINGS, since=store.version)
    with pytest.raises(StaleError):
        store.write(THINGS, thing(), replaces=None)
    assert told(watch) == []
    assert store.version == 1


def test_a_removal_is_seen_at_a_version_of_its_own() -> None:
    store = Store()
    stored = store.write(THINGS, thing(), replaces=None)
    watch = store.watch(THINGS, since=1)
    assert store.remove(THINGS, stored).version == 2
    assert told(watch) == [("DELETED", "a", "2")]
    assert store.get(THINGS, "", "a") is None


def test_a_copy_is_the_readers_own() -> None:
    store = Store()
    stored = store.write(THINGS, thing(), replaces=None)
    stored.copy()["metadata"]["name"] = "changed"
    assert stored.content["metadata"]["name"] == "a"


def test_a_watch_from_the_past_is_told_all_since() -> None:
    store = Store()
    first = store.write(THINGS, thing(), replaces=None)
    store.write(THINGS, thing(), replaces=first)
    store.write(THINGS, thing("b"), replaces=None)
    assert told(store.watch(THINGS, since=1)) == [("MODIFIED", "a", "2"), ("ADDED", "b", "3")]
    assert told(store.watch(THINGS, since=2)) == [("ADDED", "b", "3")]
    assert told(store.watch(THINGS, since=3)) == []


def test_a_watch_from_before_the_window_is_too_old() -> None:
    store = Store(history_limit=2)
    for name in "abc":
        store.write(THINGS, thing(name), replaces=None)
    assert len(told(store.watch(THINGS, since=1))) == 2
    with pytest.raises(TooOldError, match=r"too old resource version: 0 \(3\)"):
        store.watch(THINGS, since=0)


def test_each_resource_has_its_own_window() -> None:
    store = Store(history_limit=1)
    store.write(THINGS, thing("a"), replaces=None)
    for name in "bcd":
        store.write(("", "others"), thing(name), replaces=None)
    assert told(store.watch(THINGS, since=0)) == [("ADDED", "a", "1")]


def test_an_ended_watch_gives_what_is_left_and_then_none() -> None:
    store = Store()
    watch = store.watch(THINGS)
    store.write(THINGS, thing(), replaces=None)
    store.end_watches()
    assert told(watch) == [("ADDED", "a", "1")]
    assert watch.take(0) is None


def test_a_left_watch_is_told_nothing_more() -> None:
    store = Store()
    watch = store.watch(THINGS)
    store.unwatch(THINGS, watch)
    store.write(THINGS, thing(), replaces=None)
    assert told(watch) == []


def test_dependents_follow_the_owner_references() -> None:
    store = Store()
    owned = thing(ownerReferences=[{"uid": "u1"}, {"uid": "u2"}])
    first = store.write(THINGS, owned, replaces=None)
    assert store.dependents("u1") == [(THINGS, ("", "a"))]
    second = store.write(THINGS, thing(ownerReferences=[{"uid": "u2"}]), replaces=first)
    assert store.dependents("u1") == []
    store.remove(THINGS, second)
    assert store.dependents("u2") == []


def test_observers_are_called_after_the_change() -> None:
    store = Store()
    seen: list[int] = []
    store.observe(THINGS, lambda: seen.append(len(store.select(THINGS)[0])))
    stored = store.write(THINGS, thing(), replaces=None)
    store.remove(THINGS, stored)
    store.write(("", "others"), thing(), replaces=None)
    assert seen == [1, 0]
