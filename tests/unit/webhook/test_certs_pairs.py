# SPDX-License-Identifier: Apache-2.0
"""Certificates of our own, and what is refused to be served."""

from __future__ import annotations

import dataclasses
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from webhook import certs, trust
from webhook.certs import CertificateError

NOW = datetime(2026, 12, 1, tzinfo=UTC)
NAMES = certs.service_names("gpuslice-webhook", "gpuslice")
AUTHORITY = certs.new_authority(NOW)
LEAF = certs.new_leaf(AUTHORITY, NAMES, NOW)
OTHER = certs.new_leaf(certs.new_authority(NOW), ["other"], NOW)


def test_a_leaf_is_good_for_its_service_until_it_expires() -> None:
    expiry = certs.check(LEAF, NOW, needs="gpuslice-webhook.gpuslice.svc")
    assert expiry == NOW + certs.LEAF_LIFE
    assert certs.signed_by(LEAF, AUTHORITY.certificate_pem)
    assert not certs.signed_by(OTHER, AUTHORITY.certificate_pem)


def test_an_old_and_a_new_authority_can_be_trusted_together() -> None:
    bundle = AUTHORITY.certificate_pem + certs.new_authority(NOW).certificate_pem
    assert certs.signed_by(LEAF, bundle)


@pytest.mark.parametrize(
    ("leaf", "now", "needs", "words"),
    [
        pytest.param(
            dataclasses.replace(LEAF, key_pem=OTHER.key_pem), NOW, None, "not the certificate's"
        ),
        pytest.param(LEAF, NOW + timedelta(days=91), None, "expired"),
        pytest.param(OTHER, NOW, NAMES[0], "is not for gpuslice-webhook"),
        pytest.param(dataclasses.replace(LEAF, key_pem=b"x"), NOW, None, "can't be read"),
        pytest.param(dataclasses.replace(LEAF, certificate_pem=b""), NOW, None, "can't be read"),
    ],
    ids=["mismatch", "expired", "other name", "no key", "no certificate"],
)
def test_a_pair_that_cant_be_served_is_refused(
    leaf: certs.Leaf, now: datetime, needs: str | None, words: str
) -> None:
    with pytest.raises(CertificateError, match=words):
        certs.check(leaf, now, needs=needs)


def test_files_are_written_once_and_for_nobody_else(tmp_path: Path) -> None:
    assert trust.write_files(tmp_path, LEAF)
    assert not trust.write_files(tmp_path, LEAF)
    assert trust.read_files(tmp_path) == LEAF
    assert stat.S_IMODE((tmp_path / trust.KEY_FILE).stat().st_mode) == 0o600
    assert trust.write_files(tmp_path, OTHER)
    with pytest.raises(CertificateError, match="No such file"):
        trust.read_files(tmp_path / "nowhere")
