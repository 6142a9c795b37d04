# SPDX-License-Identifier: Apache-2.0
"""Laws of the cache: never older than our own writes, and in the end as the server is."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuslice.runtime.kube.objects import Change, Objects
from gpuslice.runtime.kube.resources import version_of

Json = dict[str, Any]
NAMES = st.sampled_from(["a", "b", "c"])


class Cache(RuleBasedStateMachine):
    """A server whose changes reach the cache late, and writes of our own that are put back."""

    def __init__(self) -> None:
        super().__init__()
        self.objects = Objects()
        self.server: dict[str, Json] = {}
        self.version = 0
        self.pending: list[tuple[Change, Json]] = []
        self.listened: dict[str, Json] = {}
        self.answers: list[Json] = []
        self.floor: dict[str, int] = {}

    def hear(self, notices: list[Any]) -> None:
        for change, before, after in notices:
            name = (after or before)["metadata"]["name"]
            assert self.listened.get(name) == before
            if change is Change.DELETED:
                del self.listened[name]
            else:
                self.listened[name] = after

    @rule(name=NAMES)
    def write(self, name: str) -> None:
        self.version += 1
        before = self.server.get(name)
        uid = before["metadata"]["uid"] if before else f"uid-{self.version}"
        thing = {"metadata": {"name": name, "uid": uid, "resourceVersion": str(self.version)}}
        self.server[name] = thing
        self.pending.append((Change.MODIFIED if before else Change.ADDED, thing))
        self.answers.append(thing)

    @precondition(lambda self: self.server)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.server)))
        self.version += 1
        gone = self.server.pop(name)
        last = {"metadata": gone["metadata"] | {"resourceVersion": str(self.version)}}
        self.pending.append((Change.DELETED, last))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        """In any order: many threads write."""
        thing = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
        self.hear(self.objects.put_back(thing))
        kept = self.objects.get(thing["metadata"]["name"])
        if kept is not None:
            assert version_of(kept) >= version_of(thing)
        else:
            # Only because the watch has told of a later deletion.
            assert self.objects.seen >= version_of(thing)

    @precondition(lambda self: self.pending)
    @rule()
    def watch(self) -> None:
        self.hear(self.objects.told(*self.pending.pop(0)))

    @rule()
    def relist(self) -> None:
        self.pending.clear()
        listed = [self.objects.kept(thing) for thing in self.server.values()]
        self.hear(self.objects.relist(listed, self.version))

    @invariant()
    def never_goes_back(self) -> None:
        for key, thing in self.objects.all().items():
            assert version_of(thing) >= self.floor.get(key, 0)
            self.floor[key] = version_of(thing)

    @invariant()
    def listeners_know_what_the_cache_knows(self) -> None:
        assert self.listened == self.objects.all()

    def teardown(self) -> None:
        while self.pending:
            self.watch()
        assert self.objects.all() == self.server


Cache.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    # How fast examples are made depends on who else uses the machine.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestCache = Cache.TestCase
