# SPDX-License-Identifier: Apache-2.0
"""An authority's replacement, step by step, on a clock of the test's."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from webhook import certs, rotation
from webhook.certs import Authority
from webhook.rotation import KeyPair

NOW = datetime(2026, 12, 1, tzinfo=UTC)
NAMES = certs.service_names("gpuslice-webhook", "gpuslice")
START = rotation.renewed(None, NAMES, NOW)
DUE = NOW + certs.AUTHORITY_LIFE - rotation.AUTHORITY_RENEW_BEFORE + timedelta(minutes=1)
SECOND = timedelta(seconds=1)
BROKEN = Authority(certificate_pem=b"x", key_pem=b"y")


def step(pair: KeyPair, now: datetime) -> KeyPair:
    """Take what is due; a second look at the same time must find nothing more."""
    after = rotation.renewed(pair, NAMES, now)
    assert rotation.renewed(after, NAMES, now) == after
    certs.check(after.leaf, now, needs=NAMES[0])
    assert certs.signed_by(after.leaf, after.bundle_pem)
    return after


def test_nothing_is_due_for_most_of_an_authoritys_life() -> None:
    assert step(START, NOW + timedelta(days=1)) == START
    renewed = step(START, NOW + certs.LEAF_LIFE)
    assert renewed.authority == START.authority
    assert renewed.leaf != START.leaf


def test_a_new_authority_is_trusted_before_it_signs_and_the_old_one_after() -> None:
    two = step(START, DUE)
    assert two.authority == START.authority
    assert two.coming is not None
    assert certs.signed_by(two.leaf, START.authority.certificate_pem)
    assert step(two, DUE + rotation.SPREAD - SECOND) == two
    three = step(two, DUE + rotation.SPREAD)
    assert three.authority == two.coming
    # What either of them signed is trusted at either side of the step.
    for shown in (two, three):
        for trusted in (two, three):
            assert certs.signed_by(shown.leaf, trusted.bundle_pem)
    changed = DUE + rotation.SPREAD
    assert step(three, changed + rotation.OVERLAP - SECOND) == three
    last = step(three, changed + rotation.OVERLAP)
    assert last == KeyPair(authority=three.authority, leaf=three.leaf)


def test_an_authority_that_expired_meanwhile_gives_way_at_once_to_the_coming_one() -> None:
    two = step(START, DUE)
    assert two.coming is not None
    after = step(two, NOW + certs.AUTHORITY_LIFE + SECOND)
    assert after.authority == two.coming
    assert after.parting_pem == b""


def test_an_authority_that_cant_sign_is_replaced_with_all_it_signed() -> None:
    broken = dataclasses.replace(START, authority=BROKEN)
    after = step(broken, NOW)
    assert after.authority not in (BROKEN, START.authority)


def test_a_coming_authority_that_cant_sign_never_does() -> None:
    two = dataclasses.replace(step(START, DUE), coming=BROKEN)
    after = step(two, DUE + rotation.SPREAD)
    assert after.authority == START.authority
    assert after.coming not in (None, BROKEN)


def test_a_step_whose_time_is_unknown_waits_from_now_on() -> None:
    two = dataclasses.replace(step(START, DUE), since=None)
    later = DUE + timedelta(days=2)
    waiting = step(two, later)
    assert waiting.coming == two.coming
    assert waiting.since == later
    assert step(waiting, later + rotation.SPREAD).authority == two.coming


@pytest.mark.parametrize("days", [1, 30, 89, 400])
def test_a_pair_that_was_asleep_is_good_at_any_later_look(days: int) -> None:
    pair = step(START, DUE)
    for turn in range(1, 6):
        pair = step(pair, DUE + turn * timedelta(days=days))
