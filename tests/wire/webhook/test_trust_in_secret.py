# SPDX-License-Identifier: Apache-2.0
"""The key pair in its Secret: made once, renewed in time, mended when it is broken."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from gpuslice.runtime.kube.resources import MUTATING_WEBHOOKS, SECRETS
from tests.wire.webhook.rig import NAMESPACE, Cluster
from webhook import certs, trust
from webhook.trust import SecretPlace

NOW = datetime(2026, 12, 1, tzinfo=UTC)
PLACE = SecretPlace(namespace=NAMESPACE, name="tls", service="gpuslice-webhook")


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def empty(site: Cluster) -> Cluster:
    for secret in site.client.list(SECRETS, namespace=NAMESPACE):
        site.client.delete(SECRETS, secret["metadata"]["name"], namespace=NAMESPACE)
    return site


def test_the_first_makes_the_pair_and_the_others_read_it(empty: Cluster) -> None:
    first = trust.ensure_pair(empty.client, PLACE, NOW)
    assert trust.ensure_pair(empty.client, PLACE, NOW) == first
    assert certs.check(first.leaf, NOW, needs="gpuslice-webhook.gpuslice.svc") > NOW


def test_a_leaf_is_renewed_before_it_expires_by_the_same_authority(empty: Cluster) -> None:
    first = trust.ensure_pair(empty.client, PLACE, NOW)
    later = NOW + certs.LEAF_LIFE - certs.RENEW_BEFORE + timedelta(seconds=1)
    second = trust.ensure_pair(empty.client, PLACE, later)
    assert second.authority == first.authority
    assert second.leaf != first.leaf
    assert certs.signed_by(second.leaf, first.authority.certificate_pem)


@pytest.mark.parametrize("field", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("content", [None, "", "bm8="], ids=["missing", "empty", "nonsense"])
def test_a_broken_secret_is_mended(empty: Cluster, field: str, content: str | None) -> None:
    trust.ensure_pair(empty.client, PLACE, NOW)
    secret = empty.client.get(SECRETS, PLACE.name, namespace=NAMESPACE)
    if content is None:
        del secret["data"][field]
    else:
        secret["data"][field] = content
    empty.client.replace(SECRETS, {**secret, "type": "Opaque"})
    pair = trust.ensure_pair(empty.client, PLACE, NOW)
    certs.check(pair.leaf, NOW)
    assert certs.signed_by(pair.leaf, pair.authority.certificate_pem)
    assert trust.ensure_pair(empty.client, PLACE, NOW) == pair


def test_every_webhook_of_ours_trusts_the_authority_and_others_are_left_alone(
    empty: Cluster,
) -> None:
    foreign = {
        "metadata": {"name": "foreign"},
        "webhooks": [
            {
                "name": "x.example.com",
                "clientConfig": {"url": "https://example.com/"},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
    empty.client.create(MUTATING_WEBHOOKS, foreign)
    pem = certs.new_authority(NOW).certificate_pem
    assert trust.ensure_bundles(empty.client, pem) == 4
    assert empty.is_trusting() is False
    ours = empty.client.get(MUTATING_WEBHOOKS, "gpuslice")
    assert [base64.b64decode(each["clientConfig"]["caBundle"]) for each in ours["webhooks"]] == [
        pem,
        pem,
    ]
    before = ours["metadata"]["resourceVersion"]
    trust.ensure_bundles(empty.client, pem)
    after = empty.client.get(MUTATING_WEBHOOKS, "gpuslice")["metadata"]["resourceVersion"]
    assert before == after
