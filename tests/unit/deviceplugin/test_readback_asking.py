# SPDX-License-Identifier: Apache-2.0
"""kubelet is asked about finished pods, each in its turn, until it no longer knows them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deviceplugin.checkpoint import UnreadableCheckpointError
from deviceplugin.podresources import CannotAskError
from deviceplugin.readback import Readback, Tempo, Tokens
from tests.unit.deviceplugin.claims import ref, uid

QUICK = Tempo(grant=0.001, leaving=0.001, fast=60, slow=0.001, idle=60)


class Kubelet:
    """Knows pods until the test says otherwise."""

    def __init__(self, *known: str) -> None:
        self.known = set(known)
        self.asked: list[str] = []
        self.answers = True
        self.tokens: Tokens | Exception = {}

    def get(self, namespace: str, name: str) -> frozenset[str] | None:
        self.asked.append(name)
        if not self.answers:
            raise CannotAskError("not now")
        return frozenset({"GPU-0::1"}) if name in self.known else None

    def read(self) -> Tokens:
        if isinstance(self.tokens, Exception):
            raise self.tokens
        return self.tokens


class Told:
    """Counts, and can be waited for."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.changes = 0
        self.problems: list[str] = []
        self.granting = False

    def change(self) -> None:
        with self.changed:
            self.changes += 1
            self.changed.notify_all()

    def until(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 10)


@contextmanager
def reading(kubelet: Kubelet, told: Told) -> Iterator[Readback]:
    readback = Readback(
        kubelet.read,
        kubelet,
        is_granting=lambda: told.granting,
        on_change=told.change,
        clock=time.monotonic,
        on_problem=told.problems.append,
        tempo=QUICK,
    )
    readback.start()
    try:
        yield readback
    finally:
        readback.stop()


def test_a_pod_is_released_when_kubelet_no_longer_knows_it_and_not_before() -> None:
    kubelet, told = Kubelet("a", "b"), Told()
    with reading(kubelet, told) as readback:
        readback.ask((ref("a"), ref("b")))
        kubelet.known.discard("b")
        told.until(lambda: readback.released == {uid("b")})
        kubelet.known.discard("a")
        told.until(lambda: readback.released == {uid("a"), uid("b")})


def test_a_pod_that_is_no_longer_asked_about_is_forgotten() -> None:
    kubelet, told = Kubelet(), Told()
    with reading(kubelet, told) as readback:
        readback.ask((ref("a"),))
        told.until(lambda: readback.released == {uid("a")})
        readback.ask(())
        assert readback.released == frozenset()


def test_silence_releases_nobody_and_is_told_once() -> None:
    """A kubelet that is away has freed nothing."""
    kubelet, told = Kubelet(), Told()
    kubelet.answers = False
    with reading(kubelet, told) as readback:
        readback.ask((ref("a"),))
        while len(kubelet.asked) < 5:
            time.sleep(0.001)
        assert readback.released == frozenset()
        assert told.problems == ["not now"]
        kubelet.answers = True
        told.until(lambda: readback.released == {uid("a")})


def test_the_checkpoint_is_read_until_the_grant_shows() -> None:
    kubelet, told = Kubelet(), Told()
    told.granting = True
    with reading(kubelet, told) as readback:
        given = {uid("a"): frozenset({"GPU-0::1"})}
        kubelet.tokens = given
        told.until(lambda: readback.tokens == given)


def test_a_checkpoint_that_cannot_be_read_leaves_what_was_known() -> None:
    kubelet, told = Kubelet(), Told()
    kubelet.tokens = {uid("a"): frozenset({"GPU-0::1"})}
    with reading(kubelet, told) as readback:
        kubelet.tokens = UnreadableCheckpointError("torn")
        readback.look()
        readback.look()
        assert readback.tokens == {uid("a"): {"GPU-0::1"}}
        assert told.problems == ["torn"]
