# SPDX-License-Identifier: Apache-2.0
"""The cache against the embedded API server, and against servers that misbehave."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.endpoint import Cluster
from gpuslice.runtime.kube.objects import identity
from gpuslice.runtime.kube.resources import NODES, PODS
from gpuslice.runtime.kube.watch import WatchCache
from gpuslice.sim.apiserver.server import ApiServer
from tests.wire.runtime.scripted import HANG_UP, SILENCE, Answer, Scripted, chunked

SOON = 5.0


def pod(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }


@pytest.fixture
def pods(client: KubeClient) -> Iterator[WatchCache]:
    cache = WatchCache(
        client, PODS, indexes={"node": lambda one: [one["spec"].get("nodeName") or ""]}
    )
    yield cache
    cache.stop()


def test_it_has_what_was_there_and_what_comes(client: KubeClient, pods: WatchCache) -> None:
    """List, then watch."""
    client.create(PODS, pod("before"))
    assert not pods.is_ready
    assert pods.staleness_seconds() == float("inf")
    pods.start()
    assert pods.wait_ready(SOON)
    assert list(pods.snapshot()) == ["default/before"]
    client.create(PODS, pod("after"))
    assert pods.wait_for(lambda: pods.get("default/after"), SOON)
    client.delete(PODS, "before", namespace="default", grace_seconds=0)
    assert pods.wait_for(lambda: pods.get("default/before") is None, SOON)
    assert len(pods) == 1


def test_listeners_hear_each_change_in_order_in_one_thread(
    client: KubeClient, pods: WatchCache
) -> None:
    """So that they may keep sums without a lock of their own."""
    heard: list[tuple[str, Any, Any, int]] = []
    done = threading.Event()

    def listener(change: Any, before: Any, after: Any) -> None:
        node = [one["spec"].get("nodeName") if one else None for one in (before, after)]
        heard.append((change.value, *node, threading.get_ident()))
        if change == "DELETED":
            done.set()

    pods.listen(listener)
    pods.start()
    assert pods.wait_ready(SOON)
    made = client.create(PODS, pod("a"))
    client.bind(made, "n")
    client.delete(PODS, "a", namespace="default", grace_seconds=0)
    assert done.wait(SOON)
    assert [entry[:3] for entry in heard] == [
        ("ADDED", None, None),
        ("MODIFIED", None, "n"),
        ("DELETED", "n", None),
    ]
    assert len({entry[3] for entry in heard}) == 1


def test_a_listener_that_fails_hears_the_next_change(client: KubeClient, pods: WatchCache) -> None:
    """And the cache goes on."""
    heard = threading.Semaphore(0)

    def listener(*_: Any) -> None:
        heard.release()
        raise RuntimeError("listener")

    pods.listen(listener)
    pods.start()
    assert pods.wait_ready(SOON)
    client.create(PODS, pod("a"))
    client.create(PODS, pod("b"))
    assert heard.acquire(timeout=SOON)
    assert heard.acquire(timeout=SOON)


def test_a_slow_listener_does_not_make_the_cache_old(client: KubeClient, pods: WatchCache) -> None:
    """It has a thread of its own."""
    go_on = threading.Event()
    pods.listen(lambda *_: go_on.wait(SOON))
    pods.start()
    assert pods.wait_ready(SOON)
    client.create(PODS, pod("a"))
    client.create(PODS, pod("b"))
    assert pods.wait_for(lambda: pods.get("default/b"), SOON)
    go_on.set()


def test_our_own_write_is_there_at_once(client: KubeClient, pods: WatchCache) -> None:
    """The next decision must count it, whatever the watch's lag."""
    pods.start()
    assert pods.wait_ready(SOON)
    made = client.create(PODS, pod("a"))
    pods.put_back(made)
    found = pods.get("default/a")
    assert found is not None
    assert int(found["metadata"]["resourceVersion"]) >= int(made["metadata"]["resourceVersion"])


def test_an_index_is_as_current_as_the_cache(client: KubeClient, pods: WatchCache) -> None:
    """Pods by node."""
    pods.start()
    client.bind(client.create(PODS, pod("a")), "n")
    assert pods.wait_for(lambda: pods.indexed("node", "n"), SOON)
    assert pods.indexed("node", "") == ()


def test_selectors_and_transform_keep_it_small(client: KubeClient) -> None:
    """A node's agent sees its own pods, and only what it needs of them."""
    cache = WatchCache(client, PODS, fields="spec.nodeName=n", transform=identity).start()
    client.create(PODS, pod("elsewhere"))
    client.bind(client.create(PODS, pod("here")), "n")
    found = cache.wait_for(lambda: cache.get("default/here"), SOON)
    assert found is not None
    assert list(found) == ["metadata"]
    assert len(cache) == 1
    cache.stop()


def test_bookmarks_are_signs_of_life(pods: WatchCache) -> None:
    """Nothing changes, yet it isn't stale."""
    pods.start()
    assert pods.wait_ready(SOON)
    deadline = time.monotonic() + SOON
    seen = set()
    while len(seen) < 3 and time.monotonic() < deadline:
        seen.add(pods._sign_at)
    assert len(seen) == 3
    assert pods.is_connected
    assert pods.problem == ""


def test_a_version_that_is_gone_means_a_new_list(
    server: ApiServer, client: KubeClient, pods: WatchCache
) -> None:
    """Deletions that were missed are noticed."""
    client.create(PODS, pod("a"))
    pods.start()
    assert pods.wait_for(lambda: pods.is_connected, SOON)
    server.store.end_watches()
    client.delete(PODS, "a", namespace="default", grace_seconds=0)
    client.create(PODS, pod("b"))
    server.store.compact()
    assert pods.wait_for(lambda: list(pods.snapshot()) == ["default/b"], SOON)


def test_it_says_what_it_waits_for_while_there_is_no_server() -> None:
    """For the readiness text."""
    gone = KubeClient(Cluster(server="http://127.0.0.1:1"))
    cache = WatchCache(gone, PODS).start()
    assert cache.wait_for(lambda: "refused" in cache.problem, SOON)
    cache.stop()


def test_stopping_takes_no_time_and_wakes_who_waits(pods: WatchCache) -> None:
    """Even in the middle of a watch, over TLS."""
    pods.start()
    assert pods.wait_for(lambda: pods.is_connected, SOON)
    waited = threading.Event()

    def wait() -> None:
        pods.wait_for(lambda: False, 60)
        waited.set()

    threading.Thread(target=wait, daemon=True).start()
    began = time.monotonic()
    pods.stop()
    assert waited.wait(1.0)
    assert time.monotonic() - began < 1.0
    assert not pods._reader.is_alive()


def test_one_that_was_never_started_can_be_stopped(client: KubeClient) -> None:
    """A start that failed halfway is cleaned up like any other."""
    WatchCache(client, PODS).stop()


# --- servers that misbehave


def node(version: int, name: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": "u", "resourceVersion": str(version)}}


def listing(version: int, *items: Any, more: str = "") -> Answer:
    about = {"resourceVersion": str(version)} | ({"continue": more} if more else {})
    return Answer(200, {"metadata": about, "items": list(items)})


def event(kind: str, thing: Any) -> dict[str, Any]:
    return {"type": kind, "object": thing}


def cache_of(server: Scripted, **more: Any) -> WatchCache:
    client = KubeClient(Cluster(server=server.url))
    return WatchCache(client, NODES, jitter=lambda: 0.0, **more)


def version_in(cache: WatchCache) -> str:
    found = cache.get("a")
    return found["metadata"]["resourceVersion"] if found else ""


def test_a_broken_watch_goes_on_where_it_was() -> None:
    """Not from the list, and not from the start of that watch."""
    stream = chunked(event("MODIFIED", node(2)), event("MODIFIED", node(3)), end=False)

    def broken(connection: Any) -> None:
        stream(connection)
        raise OSError

    script = (listing(1, node(1)), broken, chunked(event("MODIFIED", node(4)), end=False))
    with Scripted(*script).running() as server:
        cache = cache_of(server).start()
        assert cache.wait_for(lambda: version_in(cache) == "4", SOON)
        targets = [asked.target for asked in server.asked]
        cache.stop()
    assert "resourceVersion=1&" in targets[1]
    assert "resourceVersion=3&" in targets[2]
    assert len(targets) == 3


def test_bookmarks_move_the_place_to_go_on_from() -> None:
    """Else a quiet kind's watch would always begin too long ago."""
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "90"}})
    script = (listing(1), chunked(bookmark), chunked(end=False))
    with Scripted(*script).running() as server:
        cache = cache_of(server).start()
        assert server.wait_asked(3)
        cache.stop()
    assert "allowWatchBookmarks=true" in server.asked[1].target
    assert "resourceVersion=90&" in server.asked[2].target


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param(Answer(410, {"code": 410, "reason": "Expired"}), id="as-answer"),
        pytest.param(
            chunked(event("ERROR", {"code": 410, "reason": "Expired", "message": "old"})),
            id="as-event",
        ),
    ],
)
def test_a_watch_from_too_long_ago_lists_again(gone: Any) -> None:
    """Both ways in which a server says so."""
    script = (listing(1, node(1)), gone, listing(9, node(9)), chunked(end=False))
    with Scripted(*script).running() as server:
        cache = cache_of(server).start()
        assert cache.wait_for(lambda: version_in(cache) == "9", SOON)
        assert server.wait_asked(4)
        cache.stop()
    assert "resourceVersion=9&" in server.asked[3].target


def test_a_silent_connection_is_given_up() -> None:
    """The peer is gone and nobody said so."""
    with Scripted(listing(1), SILENCE, SILENCE).running() as server:
        cache = cache_of(server, silence_seconds=0.2).start()
        assert server.wait_asked(3)
        cache.stop()


def test_a_server_that_hangs_up_at_once_is_not_stormed() -> None:
    """Each new try waits longer."""
    with Scripted(listing(1), HANG_UP).running() as server:
        cache = cache_of(server).start()
        assert server.wait_asked(4)
        began = time.monotonic()
        assert server.wait_asked(6)
        assert time.monotonic() - began > 0.3
        cache.stop()


def test_nonsense_is_survived() -> None:
    """A proxy's page in the middle of a watch."""

    def nonsense(connection: Any) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nno\n\r\n")

    script = (listing(1, node(1)), nonsense, listing(5, node(5)), chunked(end=False))
    with Scripted(*script).running() as server:
        cache = cache_of(server).start()
        assert cache.wait_for(lambda: version_in(cache) == "5", SOON)
        cache.stop()


def test_a_line_may_come_in_pieces() -> None:
    """Chunks know nothing of lines."""

    def pieces(connection: Any) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        text = (
            b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"2"}}}\n'
            b'{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"3"}}}\n'
        )
        for at in range(0, len(text), 7):
            piece = text[at : at + 7]
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))

    with Scripted(listing(1), pieces).running() as server:
        cache = cache_of(server).start()
        assert cache.wait_for(lambda: version_in(cache) == "3", SOON)
        cache.stop()


def test_a_list_comes_in_pages_of_one_version() -> None:
    """The watch goes on from the version of the whole."""
    script = (
        listing(7, node(1, "a"), more="next"),
        listing(7, node(2, "b")),
        chunked(end=False),
    )
    with Scripted(*script).running() as server:
        cache = cache_of(server).start()
        assert cache.wait_ready(SOON)
        assert sorted(cache.snapshot()) == ["a", "b"]
        assert server.wait_asked(3)
        cache.stop()
    assert "continue=next" in server.asked[1].target
    assert "resourceVersion=7&" in server.asked[2].target


def test_the_server_is_asked_to_end_a_watch_some_time() -> None:
    """At different times for different clients."""
    with Scripted(listing(1), chunked(end=False)).running() as server:
        cache = cache_of(server).start()
        assert server.wait_asked(2)
        cache.stop()
    assert "timeoutSeconds=240" in server.asked[1].target
