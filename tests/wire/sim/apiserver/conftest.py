# SPDX-License-Identifier: Apache-2.0
"""A served API server, a client, and a webhook that it can call."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from gpuslice.sim.apiserver.server import ApiServer
from tests.wire.sim.apiserver.asking import CRDS, Client, build_crd
from tests.wire.sim.apiserver.toyhook import ToyHook

NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """Return a server without TLS, whose clock stands at noon."""
    with ApiServer(tls=False, clock=lambda: NOON, bookmark_seconds=0.05) as served:
        yield served


@pytest.fixture
def client(server: ApiServer) -> Iterator[Client]:
    asking = Client(server.url, server.ca_pem)
    yield asking
    asking.close()


@pytest.fixture
def shares(client: Client) -> Client:
    """Return a client of a server that serves the custom kind Share."""
    assert client.post(CRDS, build_crd()).code == 201
    return client


@pytest.fixture
def hook() -> Iterator[ToyHook]:
    toy = ToyHook()
    yield toy
    toy.stop()
