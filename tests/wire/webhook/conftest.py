# SPDX-License-Identifier: Apache-2.0
"""One API server with one webhook for each module that only asks; more where a test ends them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.wire.webhook.rig import Cluster, Webhook, eventually


@dataclass(frozen=True)
class Site:
    cluster: Cluster
    webhook: Webhook


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    cluster = Cluster()
    webhook = Webhook(cluster, "adoptSchedulers=[kai-scheduler]")
    try:
        webhook.wait_ready()
        eventually(cluster.is_trusting)
        yield Site(cluster=cluster, webhook=webhook)
    finally:
        webhook.close()
        cluster.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.close()
