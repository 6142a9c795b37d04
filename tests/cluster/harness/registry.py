# SPDX-License-Identifier: Apache-2.0
"""A read-only registry over an `ImageStore`: the pull half of the OCI distribution API.

The nodes ask it for images of every registry; containerd says in `?ns=` which it wants.
`registry BLOBS NAMES PORT`, on the loopback of the cluster's network namespace.

Source: github.com/opencontainers/distribution-spec, spec.md, "Pull".
"""

from __future__ import annotations

import re
import shutil
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_PATH = re.compile(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<reference>[^/]+)")
_DIGEST = re.compile(r"sha256:(?P<hex>[0-9a-f]{64})")


class Registry(ThreadingHTTPServer):
    """Serves the images of one cluster; several threads at once."""

    daemon_threads = True

    def __init__(self, *, blobs: Path, names: Path, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self._blobs = blobs
        self._names = names

    def find(self, path: str, origin: str) -> tuple[Path, str, str] | None:
        """The file, type and digest that a request is about; None where there is no such thing."""
        match = _PATH.fullmatch(path)
        if match is None:
            return None
        digest = match["reference"]
        if match["kind"] == "manifests" and not _DIGEST.fullmatch(digest):
            full_name = quote(f"{origin}/{match['name']}:{digest}", safe="")
            tag = self._names / full_name
            digest = tag.read_text() if tag.exists() else ""
        wanted = _DIGEST.fullmatch(digest)
        blob = self._blobs / wanted["hex"] if wanted else None
        if blob is None or not blob.exists():
            return None
        is_manifest = match["kind"] == "manifests"
        return blob, _MANIFEST_TYPE if is_manifest else "application/octet-stream", digest


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        url = urlsplit(self.path)
        if url.path == "/v2/":
            self._head(HTTPStatus.OK, length=0)
            return
        origin = parse_qs(url.query).get("ns", ["docker.io"])[0]
        found = self.server.find(url.path, origin)
        if found is None:
            self._head(HTTPStatus.NOT_FOUND, length=0)
            return
        blob, media_type, digest = found
        self._head(HTTPStatus.OK, length=blob.stat().st_size, media_type=media_type, digest=digest)
        if with_body:
            with blob.open("rb") as file:
                shutil.copyfileobj(file, self.wfile)

    def _head(
        self, status: HTTPStatus, *, length: int, media_type: str = "", digest: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if media_type:
            self.send_header("Content-Type", media_type)
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()


if __name__ == "__main__":
    Registry(
        blobs=Path(sys.argv[1]), names=Path(sys.argv[2]), port=int(sys.argv[3])
    ).serve_forever()
