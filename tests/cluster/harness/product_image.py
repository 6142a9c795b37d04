# SPDX-License-Identifier: Apache-2.0
"""The product's image, by the scripts that deploy/Dockerfile runs, without Docker.

Each layer is kept in the cache under a key of what it is made from, so that a change of the code
costs a second, and only a change of the locked dependencies or of the first script costs more.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import HarnessError
from .images import ImageConfig, ImageStore, Layer
from .paths import REPOSITORY, cache_dir, locked, say
from .prerequisites import search_path

DOCKERFILE = Path("deploy/Dockerfile")
_PACKAGES = ("gpuslice", "webhook", "deviceplugin", "protos")
_OPT = "opt/gpuslice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One of the scripts in deploy/image, and the layer it makes."""

    script: Path
    reads: tuple[Path, ...]
    """The files, or folders of files, that the layer depends on besides the script."""
    holds: str
    """The folder in the image that is this layer; `.` for all that earlier steps left."""


STEPS = (
    Step(script=Path("deploy/image/debian.sh"), reads=(), holds="."),
    Step(
        script=Path("deploy/image/dependencies.sh"),
        reads=(Path("requirements/runtime.txt"),),
        holds=f"{_OPT}/dependencies",
    ),
    Step(
        script=Path("deploy/image/product.sh"),
        reads=(Path("pyproject.toml"), Path("README.md"), *map(Path, _PACKAGES)),
        holds=f"{_OPT}/product",
    ),
)


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for child in sorted(path.iterdir()):
            if child.name != "__pycache__":
                yield from _files(child)
    else:
        yield path


def keys(repository: Path = REPOSITORY, steps: Sequence[Step] = STEPS) -> list[str]:
    """A name for each step's result: of its own inputs, and of the steps before."""
    digest = hashlib.sha256()
    found = []
    for step in steps:
        for top in (step.script, *step.reads):
            for path in _files(repository / top):
                digest.update(f"{path.relative_to(repository)}\0".encode())
                digest.update(path.read_bytes() + b"\0")
        found.append(digest.hexdigest()[:16])
    return found


def image_config(dockerfile: str) -> ImageConfig:
    """What the last stage of a Dockerfile says about how to run the image."""
    last = re.split(r"(?m)^FROM ", dockerfile)[-1]
    environment: list[str] = []
    labels: dict[str, str] = {}
    single: dict[str, str] = {}
    for line in re.sub(r"\\\n", " ", last).splitlines():
        word, _, rest = line.partition(" ")
        if word == "ENV":
            environment += shlex.split(rest)
        elif word == "LABEL":
            labels |= dict(item.split("=", 1) for item in shlex.split(rest))
        elif word in {"USER", "ENTRYPOINT", "CMD"}:
            single[word] = rest
    return ImageConfig(
        environment=tuple(environment),
        labels=labels,
        user=single.get("USER", ""),
        entrypoint=tuple(json.loads(single.get("ENTRYPOINT", "[]"))),
        command=tuple(json.loads(single.get("CMD", "[]"))),
    )


def _run(step: Step, root: Path) -> None:
    done = subprocess.run(
        (REPOSITORY / step.script, root),
        cwd=REPOSITORY,
        env={**os.environ, "PATH": search_path(), "PYTHON": sys.executable, "TZ": "UTC"},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise HarnessError(f"{step.script} failed:\n{(done.stderr or done.stdout)[-3000:]}")


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    for old in folder.glob(".building-*"):  # the caller holds the lock: nobody else's
        shutil.rmtree(old)
    made = Path(tempfile.mkdtemp(prefix=".building-", dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def _make_layer(step: Step, base: Path | None, target: Path, store: ImageStore) -> None:
    """Run a step on a copy of the one before; leave its root and its layer, or nothing."""
    with _scratch(target.parent) as scratch:
        half = scratch / "made"
        half.mkdir()
        root = half / "root"
        if base is not None:
            # Links, not copies: a step only adds files.
            subprocess.run(("cp", "-al", base / "root", root), check=True)
        _run(step, root)
        tar = subprocess.run(
            (
                *("tar", "--create", "--sort=name", "--numeric-owner", "--mtime=@0"),
                *("--owner=0", "--group=0", f"--directory={root}", f"./{step.holds}"),
            ),
            check=True,
            capture_output=True,
        ).stdout
        (half / "layer.json").write_text(json.dumps(store.add_layer(tar).as_json()))
        half.rename(target)


def _layer(made: Path, store: ImageStore) -> Layer | None:
    """What a step made before, if it is still there and so is the layer's blob."""
    try:
        layer = Layer.from_json(json.loads((made / "layer.json").read_text()))
    except FileNotFoundError:
        return None
    return layer if store.has(layer) else None


def build(store: ImageStore, names: Sequence[str]) -> None:
    """Put the product's image into the store under these names.

    A minute when nothing is there, a second when only our code has changed.

    Raises:
        HarnessError: a step failed; with the end of what it printed.
    """
    folder = cache_dir() / "product"
    layers = []
    base: Path | None = None
    with locked(folder / ".lock"):
        for step, key in zip(STEPS, keys(), strict=True):
            target = folder / f"{step.script.stem}-{key}"
            if _layer(target, store) is None:
                started = time.monotonic()
                shutil.rmtree(target, ignore_errors=True)
                _make_layer(step, base, target, store)
                say(f"image: {step.script} in {time.monotonic() - started:.1f} s")
            os.utime(target)
            for old in folder.glob(f"{step.script.stem}-*"):
                if old != target and time.time() - old.stat().st_mtime > 24 * 3600:
                    shutil.rmtree(old)
            made = _layer(target, store)
            assert made is not None
            layers.append(made)
            base = target
    config = image_config((REPOSITORY / DOCKERFILE).read_text())
    store.add(names, layers, config)
