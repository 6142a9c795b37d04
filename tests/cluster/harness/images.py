# SPDX-License-Identifier: Apache-2.0
"""Container images, made without Docker: one tar as the only layer, stored as a registry serves it.

The store is a folder: `blobs/<sha256>` and, per image name, `manifests/<name>` naming a blob.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from .prerequisites import which

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
_ARCHITECTURES: Mapping[str, str] = {"x86_64": "amd64", "aarch64": "arm64"}

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


class ImageStore:
    """Images on disk, content-addressed; a registry per cluster serves them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("blobs", "manifests"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def manifest(self, name: str) -> Path:
        """The file with the digest of an image, e.g. of `docker.io/library/ubuntu:latest`."""
        return self.folder / "manifests" / quote(name, safe="")

    def _write(self, path: Path, data: bytes) -> None:
        handle, half = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(half).chmod(0o644)
        Path(half).replace(path)

    def _blob(self, data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        self._write(self.folder / "blobs" / digest, data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def add(self, names: Sequence[str], layer_tar: bytes, config: ImageConfig) -> None:
        """Store an image whose files are in an uncompressed tar, under each of the names."""
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
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer_tar).hexdigest()}"],
            },
        }
        layer = gzip.compress(layer_tar, compresslevel=1, mtime=0)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": self._blob(json.dumps(document).encode(), _CONFIG_TYPE),
            "layers": [self._blob(layer, _LAYER_TYPE)],
        }
        descriptor = self._blob(json.dumps(manifest).encode(), MANIFEST_TYPE)
        for name in names:
            self._write(self.manifest(name), str(descriptor["digest"]).encode())


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
    layer = busybox_layer(busybox)
    for name in BUSYBOX_IMAGES:
        sandbox = "pause" in name
        command = ("/bin/sleep", "2147483647") if sandbox else ("/bin/sh",)
        store.add((name,), layer, ImageConfig(command=command))
