# SPDX-License-Identifier: Apache-2.0
"""The thread that looks after the certificate: what it notices by itself, and whom it tells."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from webhook import certs, trust
from webhook.certs import Leaf
from webhook.keeping import CertificateKeeper, GivenCertificate

NAMES = certs.service_names("gpuslice-webhook", "gpuslice")
AUTHORITY = certs.new_authority(datetime.now(UTC))
SECONDS = 10.0


def build_leaf() -> Leaf:
    return certs.new_leaf(AUTHORITY, NAMES, datetime.now(UTC))


class Told:
    """What the keeper said, in order."""

    def __init__(self) -> None:
        self.reports: queue.Queue[tuple[str, str, bool]] = queue.Queue()
        self.anew: queue.Queue[bool] = queue.Queue()
        self.expiries: queue.Queue[datetime] = queue.Queue()

    def report(self, reason: str, message: str, *, warning: bool) -> None:
        self.reports.put((reason, message, warning))


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    """Return what is heard of a keeper that looks at a folder, a hundred times a second."""
    heard = Told()
    trust.write_files(tmp_path, build_leaf())
    keeper = CertificateKeeper(
        GivenCertificate(tmp_path, served=trust.read_files(tmp_path)),
        tell=heard.expiries.put,
        serve_anew=lambda: heard.anew.put(True),  # noqa: FBT003  that it was called is all
        report=heard.report,
        look_seconds=0.01,
        retry_seconds=0.01,
    )
    keeper.start()
    yield heard
    keeper.stop()


def test_a_new_pair_of_files_is_served_anew_by_itself(told: Told, tmp_path: Path) -> None:
    told.expiries.get(timeout=SECONDS)
    assert told.anew.empty()
    trust.write_files(tmp_path, build_leaf())
    assert told.anew.get(timeout=SECONDS)
    # Between its two files a pair doesn't match: that is told, and is over at the next look.
    reasons = [told.reports.get(timeout=SECONDS)[0]]
    while reasons[-1] != "CertificateChanged":
        reasons.append(told.reports.get(timeout=SECONDS)[0])
    assert set(reasons) <= {"CertificateTrouble", "CertificateChanged"}


def test_a_pair_that_cant_be_served_is_told_once_and_not_served(told: Told, tmp_path: Path) -> None:
    told.expiries.get(timeout=SECONDS)
    part = tmp_path / "part"
    part.write_bytes(build_leaf().key_pem)
    part.replace(tmp_path / trust.KEY_FILE)
    reason, message, warning = told.reports.get(timeout=SECONDS)
    assert reason == "CertificateTrouble"
    assert "the key is not the certificate's" in message
    assert warning
    with pytest.raises(queue.Empty):
        told.reports.get(timeout=0.2)
    assert told.anew.empty()


def test_what_goes_missing_and_comes_back_is_looked_after_again(told: Told, tmp_path: Path) -> None:
    told.expiries.get(timeout=SECONDS)
    leaf = build_leaf()
    (tmp_path / trust.CERTIFICATE_FILE).unlink()
    assert told.reports.get(timeout=SECONDS)[0] == "CertificateTrouble"
    trust.write_files(tmp_path, leaf)
    assert told.anew.get(timeout=SECONDS)
