# SPDX-License-Identifier: Apache-2.0
"""The test cluster's registry, over a real socket, as containerd asks."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from tests.cluster.harness.images import ImageConfig, ImageStore
from tests.cluster.harness.registry import Registry

LAYER = b"a tar" * 1000


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    made = ImageStore(blobs=tmp_path / "blobs", names=tmp_path / "names")
    layers = (made.add_layer(LAYER),)
    made.add(("ghcr.io/me/app:1",), layers, ImageConfig(command=("/bin/x",), user="7"))
    return made


@pytest.fixture
def registry(store: ImageStore) -> Iterator[str]:
    server = Registry(blobs=store.blobs, names=store.names, port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v2/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def http() -> Iterator[urllib3.PoolManager]:
    with urllib3.PoolManager(retries=False) as pool:
        yield pool


def test_an_image_is_pulled_by_name_then_by_digest(
    registry: str, http: urllib3.PoolManager
) -> None:
    head = http.request("HEAD", f"{registry}me/app/manifests/1?ns=ghcr.io")
    digest = head.headers["Docker-Content-Digest"]
    manifest = http.request("GET", f"{registry}me/app/manifests/{digest}?ns=ghcr.io")
    assert manifest.headers["Content-Type"] == "application/vnd.oci.image.manifest.v1+json"
    assert f"sha256:{hashlib.sha256(manifest.data).hexdigest()}" == digest
    described = json.loads(manifest.data)
    config = http.request("GET", f"{registry}me/app/blobs/{described['config']['digest']}")
    layer = http.request("GET", f"{registry}me/app/blobs/{described['layers'][0]['digest']}")
    assert json.loads(config.data)["config"]["Cmd"] == ["/bin/x"]
    assert json.loads(config.data)["config"]["User"] == "7"
    assert gzip.decompress(layer.data) == LAYER
    content = f"sha256:{hashlib.sha256(LAYER).hexdigest()}"
    assert json.loads(config.data)["rootfs"]["diff_ids"] == [content]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("me/app/manifests/1?ns=docker.io", id="another registry"),
        pytest.param("me/app/manifests/2?ns=ghcr.io", id="another tag"),
        pytest.param(f"me/app/blobs/sha256:{'0' * 64}", id="no such blob"),
        pytest.param("me/app/blobs/..%2f..%2fnames", id="a path"),
        pytest.param("me/app/tags/list", id="not implemented"),
    ],
)
def test_what_is_not_there_is_not_found(
    registry: str, http: urllib3.PoolManager, path: str
) -> None:
    assert http.request("GET", registry + path).status == 404


def test_it_says_that_it_is_a_registry(registry: str, http: urllib3.PoolManager) -> None:
    assert http.request("GET", registry).status == 200
