# SPDX-License-Identifier: Apache-2.0
"""What a cache keeps of what it is told, in which order whatever it comes."""

from __future__ import annotations

from typing import Any

from gpuslice.runtime.kube.objects import Change, Objects, identity

Json = dict[str, Any]


def pod(name: str, version: int, *, uid: str = "u", node: str = "") -> Json:
    return {
        "metadata": {"name": name, "namespace": "n", "uid": uid, "resourceVersion": str(version)},
        "spec": {"nodeName": node},
    }


def changes(notices: list[Any]) -> list[str]:
    return [change.value for change, _, _ in notices]


def test_events_are_told_with_before_and_after() -> None:
    """Listeners need both to keep their own sums."""
    objects = Objects()
    first, second = pod("p", 1), pod("p", 2)
    assert objects.told(Change.ADDED, first) == [(Change.ADDED, None, first)]
    assert objects.told(Change.MODIFIED, second) == [(Change.MODIFIED, first, second)]
    assert objects.told(Change.DELETED, pod("p", 3)) == [(Change.DELETED, second, None)]
    assert len(objects) == 0


def test_an_older_event_changes_nothing() -> None:
    """Our own write was put back before the watch told of the time before it."""
    objects = Objects()
    objects.told(Change.ADDED, pod("p", 1))
    objects.put_back(pod("p", 5, node="a"))
    assert objects.told(Change.MODIFIED, pod("p", 3)) == []
    assert objects.get("n/p") == pod("p", 5, node="a")


def test_the_event_of_our_own_write_is_no_news() -> None:
    """The same version says the same."""
    objects = Objects()
    objects.put_back(pod("p", 5))
    assert objects.told(Change.ADDED, pod("p", 5)) == []


def test_a_put_back_object_that_was_deleted_stays_gone() -> None:
    """The watch has passed its version, so it knows better."""
    objects = Objects()
    objects.told(Change.ADDED, pod("p", 1))
    objects.told(Change.DELETED, pod("p", 7))
    assert objects.put_back(pod("p", 5)) == []
    assert objects.get("n/p") is None


def test_a_new_object_of_an_old_name_is_told_as_two_changes() -> None:
    """A listener that counts pods must not take two for one."""
    objects = Objects()
    old = pod("p", 1, uid="old")
    objects.told(Change.ADDED, old)
    new = pod("p", 9, uid="new")
    assert objects.put_back(new) == [(Change.DELETED, old, None), (Change.ADDED, None, new)]
    assert objects.told(Change.DELETED, pod("p", 8, uid="old")) == []
    assert objects.get("n/p") == new


def test_a_list_ends_what_it_does_not_name() -> None:
    """The deletion was missed while the watch was away."""
    objects = Objects()
    objects.told(Change.ADDED, pod("stays", 1))
    objects.told(Change.ADDED, pod("goes", 2))
    listed = [objects.kept(pod("stays", 1)), objects.kept(pod("new", 3))]
    assert changes(objects.relist(listed, 4)) == ["ADDED", "DELETED"]
    assert sorted(objects.all()) == ["n/new", "n/stays"]


def test_a_list_leaves_what_is_younger_than_itself() -> None:
    """Our own write came back while the list was under way."""
    objects = Objects()
    objects.put_back(pod("young", 10))
    assert objects.relist([], 4) == []
    assert objects.get("n/young") is not None


def test_an_index_follows_its_objects() -> None:
    """Pods by node, for one."""
    objects = Objects(indexes={"node": lambda one: [one["spec"]["nodeName"]]})
    objects.told(Change.ADDED, pod("p", 1, node="a"))
    objects.told(Change.ADDED, pod("q", 2, node="a"))
    objects.told(Change.MODIFIED, pod("p", 3, node="b"))
    assert [one["metadata"]["name"] for one in objects.indexed("node", "a")] == ["q"]
    assert [one["metadata"]["name"] for one in objects.indexed("node", "b")] == ["p"]
    objects.told(Change.DELETED, pod("q", 4))
    assert objects.indexed("node", "a") == ()


def test_only_what_a_transform_leaves_is_kept() -> None:
    """20 000 pods at 10 kB each are too many for memory."""
    objects = Objects(transform=identity)
    objects.told(Change.ADDED, pod("p", 1))
    assert objects.get("n/p") == {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "1"}
    }
