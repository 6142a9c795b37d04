# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import islice
from typing import Any

from gpuslice.sim.apiserver.server import ApiServer
from tests.wire.sim.apiserver.asking import PODS, Client, build_binding, build_pod

Json = dict[str, Any]


def brief(event: Json) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"]["name"]


def version_of(client: Client) -> str:
    return client.get(PODS).version


def test_a_watch_tells_what_happens_after_its_version(client: Client) -> None:
    client.post(PODS, build_pod("before"))
    since = version_of(client)
    client.post(PODS, build_pod("a"))
    client.patch(f"{PODS}/a", {"metadata": {"labels": {"k": "v"}}})
    client.delete(f"{PODS}/a")
    events = list(islice(client.watch(f"{PODS}?watch=1&resourceVersion={since}"), 3))
    assert [brief(event) for event in events] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
    ]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))


def test_a_watch_without_a_version_begins_with_what_is_there(client: Client) -> None:
    client.post(PODS, build_pod("a"))
    events = client.watch(f"{PODS}?watch=true")
    assert brief(next(events)) == ("ADDED", "a")
    client.post(PODS, build_pod("b"))
    assert brief(next(events)) == ("ADDED", "b")


def test_a_watch_sees_only_its_namespace(client: Client) -> None:
    client.post("/api/v1/namespaces/kube-system/pods", build_pod("other"))
    client.post(PODS, build_pod("mine"))
    assert brief(next(client.watch(f"{PODS}?watch=1"))) == ("ADDED", "mine")
    everywhere = islice(client.watch("/api/v1/pods?watch=1"), 2)
    assert {brief(event)[1] for event in everywhere} == {"mine", "other"}


def test_entering_and_leaving_a_selection_are_added_and_deleted(client: Client) -> None:
    since = version_of(client)
    client.post(PODS, build_pod("p", labels={"color": "red"}))
    for color in ("blue", "green", "red"):
        client.patch(f"{PODS}/p", {"metadata": {"labels": {"color": color}}})
    query = f"watch=1&resourceVersion={since}&labelSelector=color+in+(blue,green)"
    events = list(islice(client.watch(f"{PODS}?{query}"), 3))
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    # As in Kubernetes: the object as it was last selected, at the version of the change.
    last = events[2]["object"]["metadata"]
    assert last["labels"] == {"color": "green"}
    assert last["resourceVersion"] == version_of(client)


def test_a_node_sees_a_pod_when_it_is_bound_to_it(client: Client) -> None:
    since = version_of(client)
    client.post(PODS, build_pod("p"))
    client.post(f"{PODS}/p/binding", build_binding("p"))
    query = f"watch=1&resourceVersion={since}&fieldSelector=spec.nodeName%3Dnode-a"
    assert brief(next(client.watch(f"/api/v1/pods?{query}"))) == ("ADDED", "p")


def test_bookmarks_tell_a_quiet_watch_the_version(client: Client) -> None:
    since = version_of(client)
    watched = client.watch(f"{PODS}?watch=1&resourceVersion={since}&allowWatchBookmarks=true")
    client.post("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "a"}})
    event = next(
        event
        for event in watched
        if int(event["object"]["metadata"]["resourceVersion"]) > int(since)
    )
    assert event["type"] == "BOOKMARK"
    assert event["object"]["kind"] == "Pod"
    assert event["object"]["metadata"] == {"resourceVersion": str(int(since) + 1)}


def test_a_streaming_list_marks_its_end(client: Client) -> None:
    client.post(PODS, build_pod("a"))
    query = (
        "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    )
    added, end = islice(client.watch(f"{PODS}?{query}"), 2)
    assert brief(added) == ("ADDED", "a")
    assert end["type"] == "BOOKMARK"
    assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_version_from_before_the_window_is_gone(server: ApiServer, client: Client) -> None:
    since = version_of(client)
    client.post(PODS, build_pod("a"))
    server.store.compact()
    (event,) = client.watch(f"{PODS}?watch=1&resourceVersion={since}")
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")


def test_the_window_holds_as_many_changes_as_it_is_given() -> None:
    with ApiServer(tls=False, history_limit=2) as server:
        client = Client(server.url, b"")
        first = version_of(client)
        second = client.post(PODS, build_pod("a")).version
        for name in "bc":
            client.post(PODS, build_pod(name))
        events = client.watch(f"{PODS}?watch=1&resourceVersion={second}")
        assert [brief(event) for event in islice(events, 2)] == [("ADDED", "b"), ("ADDED", "c")]
        (event,) = client.watch(f"{PODS}?watch=1&resourceVersion={first}")
        assert event["object"]["code"] == 410
        client.close()


def test_a_watch_ends_after_its_timeout(client: Client) -> None:
    client.post(PODS, build_pod("a"))
    assert [brief(one) for one in client.watch(f"{PODS}?watch=1&timeoutSeconds=1")] == [
        ("ADDED", "a")
    ]


def test_a_watch_of_one_name_sees_only_that(client: Client) -> None:
    for name in "ab":
        client.post(PODS, build_pod(name))
    events = client.watch(f"{PODS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Db")
    assert [brief(event) for event in events] == [("ADDED", "b")]
    assert brief(next(client.watch(f"{PODS}/b?watch=1"))) == ("ADDED", "b")
