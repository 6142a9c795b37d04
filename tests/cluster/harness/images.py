# SPDX-License-Identifier: Apache-2.0
"""Container images, made without Docker: one tar as the only layer, stored as a registry serves it.

Blobs, named by their content, are kept in the cache for all clusters; names are each cluster's own,
so that two of them, of two checkouts, can have different images of one name.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .prerequisites import which

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
_ARCHITECTURES: Mapping[str, str] = {"x86_64": "amd64", "aarch64": "arm64"}

UNUSED_SECONDS = 7 * 24 * 3600

BUSYBOX_IMAGES = (
    "docker.io/library/ubuntu:latest",
    "docker.io/library/busybox:latest",
    "registry.k8s.io/pause:3.10",
)
"""All of them the same few applets: `image: ubuntu` with sleep, sh, env, nc and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """What an image says about how to run it."""

    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    user: str = ""
    environment: tuple[str, ...] = (
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    )
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer that is in a store."""

    digest: str
    """Of the compressed blob, which is its name."""
    size_bytes: int
    content_digest: str
    """Of the tar within, which the image's config names."""

    def as_json(self) -> dict[str, str | int]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Layer:
        return cls(**values)


class ImageStore:
    """The images that a cluster's registry serves."""

    def __init__(self, *, blobs: Path, names: Path) -> None:
        """Open a store, or make it.

        Args:
            blobs: the folder of everything, by digest; shared, and rid of what is long unused.
            names: the folder with one file per image, which has the manifest's digest.
        """
        self.blobs = blobs
        self.names = names
        for folder in (blobs, names):
            folder.mkdir(parents=True, exist_ok=True)
        for blob in blobs.iterdir():
            if time.time() - blob.stat().st_mtime > UNUSED_SECONDS:
                blob.unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        handle, half = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(half).chmod(0o644)
        Path(half).replace(path)

    def has(self, layer: Layer) -> bool:
        """Whether a layer is there; if so it stays for as long as unused blobs do."""
        blob = self.blobs / layer.digest.removeprefix("sha256:")
        with suppress(FileNotFoundError):
            os.utime(blob)
            return True
        return False

    def _blob(self, data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        self._write(self.blobs / digest, data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def add_layer(self, tar: bytes) -> Layer:
        """Store a layer: an uncompressed tar of files."""
        # Lightly: it only travels over loopback, and the time of the tests counts.
        descriptor = self._blob(gzip.compress(tar, compresslevel=1, mtime=0), _LAYER_TYPE)
        return Layer(
            digest=str(descriptor["digest"]),
            size_bytes=int(str(descriptor["size"])),
            content_digest=f"sha256:{hashlib.sha256(tar).hexdigest()}",
        )

    def add(self, names: Sequence[str], layers: Sequence[Layer], config: ImageConfig) -> None:
        """Store an image of layers that are there, under each of the names."""
        settings: dict[str, object] = {"Env": list(config.environment), "Labels": {**config.labels}}
        if config.command:
            settings["Cmd"] = list(config.command)
        if config.entrypoint:
            settings["Entrypoint"] = list(config.entrypoint)
        if config.user:
            settings["User"] = config.user
        document = {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [layer.content_digest for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": self._blob(json.dumps(document).encode(), _CONFIG_TYPE),
            "layers": [
                {"mediaType": _LAYER_TYPE, "digest": layer.digest, "size": layer.size_bytes}
                for layer in layers
            ],
        }
        descriptor = self._blob(json.dumps(manifest).encode(), MANIFEST_TYPE)
        for name in names:
            self._write(self.names / quote(name, safe=""), str(descriptor["digest"]).encode())


def busybox_layer(busybox: Path) -> bytes:
    """A root file system of one static program and its applets' links."""
    applets = subprocess.run(
        (busybox, "--list"), check=True, capture_output=True, text=True
    ).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def add(path: str, data: bytes | None = None, *, mode: int = 0o755, link: str = "") -> None:
            entry = tarfile.TarInfo(path)
            entry.mode = mode
            if link:
                entry.type, entry.linkname = tarfile.SYMTYPE, link
            elif data is None:
                entry.type = tarfile.DIRTYPE
            else:
                entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data or b""))

        for folder in ("bin", "dev", "etc", "proc", "root", "sys", "usr", "usr/bin", "var"):
            add(folder)
        add("tmp", mode=0o1777)
        add("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", mode=0o644)
        add("etc/group", b"root:x:0:\n", mode=0o644)
        add("bin/busybox", busybox.read_bytes())
        for applet in applets:
            if applet != "busybox":
                add(f"bin/{applet}", link="/bin/busybox")
        add("usr/bin/env", link="/bin/busybox")
    return buffer.getvalue()


def add_busybox_images(store: ImageStore) -> None:
    """Make the small images that test pods and sandboxes run, unless they are there."""
    busybox = Path(which("busybox") or "/bin/busybox")
    layer = store.add_layer(busybox_layer(busybox))
    for name in BUSYBOX_IMAGES:
        sandbox = "pause" in name
        command = ("/bin/sleep", "2147483647") if sandbox else ("/bin/sh",)
        store.add((name,), (layer,), ImageConfig(command=command))
