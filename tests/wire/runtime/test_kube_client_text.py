# SPDX-License-Identifier: Apache-2.0
"""Plain text by the API server: a pod's page through its proxy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.endpoint import Cluster
from gpuslice.runtime.kube.errors import NotFoundError
from tests.wire.runtime.scripted import Answer, Scripted


@contextlib.contextmanager
def client_of(server: Scripted) -> Iterator[KubeClient]:
    client = KubeClient(Cluster(server=server.url), component="tests")
    yield client
    client.close()


def test_text_arrives_as_it_was_sent() -> None:
    page = b"# HELP a b\na 1\n"
    with Scripted(Answer(body=page)).running() as server, client_of(server) as client:
        assert client.text("/a:9402/proxy/metrics") == page.decode()
        assert server.asked[0].target == "/a:9402/proxy/metrics"


def test_what_isnt_there_is_an_error_of_its_own() -> None:
    status = {"kind": "Status", "reason": "NotFound", "message": 'pods "a" not found'}
    with (
        Scripted(Answer(code=404, body=status)).running() as server,
        client_of(server) as client,
        pytest.raises(NotFoundError, match='pods "a" not found'),
    ):
        client.text("/a")
