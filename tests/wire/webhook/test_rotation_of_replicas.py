# SPDX-License-Identifier: Apache-2.0
"""Several replicas, one API server, one clock: every leaf that anybody shows is always trusted."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuslice.runtime.kube.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS
from tests.wire.webhook.rig import NAMESPACE, Cluster
from webhook import certs, rotation, trust
from webhook.keeping import OwnCertificate
from webhook.trust import SecretPlace

START = datetime(2026, 12, 1, tzinfo=UTC)
PLACE = SecretPlace(namespace=NAMESPACE, name="tls", service="gpuslice-webhook")


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


class Replica:
    """Looks when it is told to, by the test's clock, and shows what it last read."""

    def __init__(self, site: Cluster, folder: Path) -> None:
        self.folder = folder
        self.now = START
        folder.mkdir()
        self._keeper = OwnCertificate(site.client, PLACE, folder, clock=lambda: self.now)

    def look(self, now: datetime) -> None:
        self.now = now
        self._keeper.look()


def bundles(site: Cluster) -> set[bytes]:
    return {
        base64.b64decode(webhook["clientConfig"]["caBundle"])
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
        for configuration in site.client.list(resource)
        for webhook in configuration["webhooks"]
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_an_authority_is_replaced_while_everything_shown_is_trusted(
    site: Cluster, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    for secret in site.client.list(SECRETS, namespace=NAMESPACE):
        site.client.delete(SECRETS, secret["metadata"]["name"], namespace=NAMESPACE)
    replicas = [Replica(site, tmp_path / str(number)) for number in range(3)]
    for replica in replicas:
        replica.look(START)
    (first,) = bundles(site)
    now = START + certs.AUTHORITY_LIFE - rotation.AUTHORITY_RENEW_BEFORE - timedelta(minutes=5)
    for replica in replicas:
        replica.look(now)
    seen = [first]
    until = now + rotation.SPREAD + rotation.OVERLAP + timedelta(hours=3)
    while now < until:
        # Each looks within a few minutes of the others, in any order, some now and then twice.
        for replica in chance.choices(replicas, k=2):
            replica.look(now)
            (bundle,) = bundles(site)
            if bundle != seen[-1]:
                seen.append(bundle)
            for each in replicas:
                assert certs.signed_by(trust.read_files(each.folder), bundle)
        now += timedelta(minutes=chance.choice((1, 2, 3, 30 if len(seen) > 2 else 2)))
    counts = [bundle.count(b"BEGIN CERTIFICATE") for bundle in seen]
    assert counts in ([1, 2, 2, 1], [1, 2, 1])
    assert seen[-1] != first
    assert seen[-1] in seen[1]


def test_a_replica_that_slept_never_takes_back_a_bundle(site: Cluster) -> None:
    """It read the old bundle, slept, and wakes when the others have written a new one."""
    old, new = (certs.new_authority(START).certificate_pem for _ in range(2))
    trust.ensure_bundles(site.client, new)
    assert trust.ensure_bundles(site.client, old, is_current=lambda: False) == 0
    assert bundles(site) == {new}

    def others_write_meanwhile() -> bool:
        trust.ensure_bundles(site.client, old + new)
        return True

    assert trust.ensure_bundles(site.client, old, is_current=others_write_meanwhile) == 0
    assert bundles(site) == {old + new}
