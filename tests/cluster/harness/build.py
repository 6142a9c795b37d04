# SPDX-License-Identifier: Apache-2.0
"""Kubernetes, etcd and containerd, compiled once from the Go module proxy into the cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import HarnessError, MissingError
from .paths import GO_MODULES, cache_dir, locked, say
from .prerequisites import which

DEFAULT_KUBE_VERSION = "1.36.3"
NO_GO = "Go is not installed (go is not in PATH): https://go.dev/dl"
GO_DEFAULT = Path("/usr/local/go/bin/go")
"""Where Go's own installer puts it, which root's PATH may lack."""
UNUSED_SECONDS = 30 * 24 * 3600
"""A build that nobody has run for this long makes way for the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoModule:
    """One of the folders in tests/cluster/go, and how it is compiled."""

    name: str
    """The folder, e.g. "etcd"."""
    title: str
    """For people, e.g. "Kubernetes 1.36.3"."""
    mod_file: Path
    """The go.mod to use: the folder's own or, for another Kubernetes, one beside it."""
    programs: tuple[str, ...]
    """The files that the build leaves."""
    packages: tuple[str, ...]
    """What is built: packages, or `tool` for all of go.mod's tools."""
    flags: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return self.mod_file.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Where the compiled programs are."""

    kubernetes: Path
    etcd: Path
    containerd: Path
    """The folder with containerd, containerd-shim-runc-v2 and ctr."""

    def kube(self, program: str) -> tuple[str, ...]:
        """The start of a command line, e.g. of `kubectl`: one binary holds all of them."""
        return str(self.kubernetes), program


def kube_mod_file(version: str) -> Path:
    """The go.mod that asks for exactly this Kubernetes.

    Raises:
        HarnessError: there is none; says which there are.
    """
    by_version = {
        found[1]: path
        for path in sorted((GO_MODULES / "kubernetes").glob("*.mod"))
        if (found := re.search(r"k8s\.io/kubernetes v(\S+)", path.read_text()))
    }
    if version not in by_version:
        raise HarnessError(
            f"no Kubernetes {version!r} in tests/cluster/go/kubernetes: there are "
            f"{', '.join(sorted(by_version))}. "
            "Add one with: python -m tests.cluster.harness modules VERSION"
        )
    return by_version[version]


def modules(kube_version: str) -> tuple[GoModule, ...]:
    major, minor, _patch = kube_version.split(".")
    # Without the stamp the programs call themselves v0.0.0, and kubectl's skew check misfires.
    stamp = " ".join(
        f"-X k8s.io/component-base/version.git{field}={value}"
        for field, value in (
            ("Version", f"v{kube_version}"),
            ("Major", major),
            ("Minor", minor),
        )
    )
    return (
        GoModule(
            name="containerd",
            title="containerd",
            mod_file=GO_MODULES / "containerd" / "go.mod",
            programs=("containerd", "containerd-shim-runc-v2", "ctr"),
            packages=("tool",),
            flags=("-tags=no_btrfs no_devmapper no_zfs", "-ldflags=-s -w"),
        ),
        GoModule(
            name="etcd",
            title="etcd",
            mod_file=GO_MODULES / "etcd" / "go.mod",
            programs=("etcd",),
            packages=(".",),
            flags=("-ldflags=-s -w",),
        ),
        GoModule(
            name="kubernetes",
            title=f"Kubernetes {kube_version}",
            mod_file=kube_mod_file(kube_version),
            programs=("kubernetes",),
            packages=(".",),
            flags=(f"-ldflags=-s -w {stamp}",),
        ),
    )


def has_go() -> bool:
    return which("go") is not None or GO_DEFAULT.exists()


def go() -> str:
    """The go command.

    Raises:
        MissingError: there is none.
    """
    if not has_go():
        raise MissingError(NO_GO)
    return which("go") or str(GO_DEFAULT)


def _environment(module: GoModule) -> Mapping[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": f"-modfile={module.mod_file}"}


def _go_version() -> str:
    return subprocess.run(
        (go(), "env", "GOVERSION", "GOOS", "GOARCH"), check=True, capture_output=True, text=True
    ).stdout


def key(module: GoModule, go_version: str) -> str:
    """A name for what a module compiles to: its sources, its dependencies, compiler and flags."""
    digest = hashlib.sha256()
    sources = sorted(module.folder.glob("*.go"))
    for path in (module.mod_file, module.mod_file.with_suffix(".sum"), *sources):
        digest.update(path.read_bytes() + b"\0")
    digest.update("\0".join((go_version, *module.flags, *module.packages)).encode())
    return digest.hexdigest()[:16]


def _count_packages(module: GoModule, environment: Mapping[str, str]) -> int:
    """How many packages there are to compile; downloads what isn't there yet."""
    done = subprocess.run(
        (go(), "list", "-deps", *module.packages),
        cwd=module.folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise HarnessError(f"{module.title}: go list failed:\n{done.stderr[-2000:]}")
    return len(done.stdout.split())


def _compile(module: GoModule, into: Path) -> None:
    """Run `go build`, and say now and then how far it is."""
    command = [go(), "build", "-v", "-trimpath", "-buildvcs=false", *module.flags]
    environment = _environment(module)
    total = _count_packages(module, environment)
    started, compiled, told = time.monotonic(), 0, 0.0
    output: list[str] = []
    with subprocess.Popen(
        (*command, "-o", f"{into}/", *module.packages),
        cwd=module.folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if re.fullmatch(r"[\w./~+-]+\n", line):
                compiled += 1
            else:
                output.append(line)
            if time.monotonic() - told > 15:
                told = time.monotonic()
                seconds = told - started
                say(f"  {module.title}: {compiled} of up to {total} packages, {seconds:.0f} s")
    if process.returncode:
        raise HarnessError(f"{module.title} does not compile:\n{''.join(output[-30:])}")


def _forget_unused(folder: Path, keep: str) -> None:
    now = time.time()
    for old in folder.iterdir():
        if old.is_dir() and old.name != keep and now - old.stat().st_mtime > UNUSED_SECONDS:
            shutil.rmtree(old, ignore_errors=True)


def _built(module: GoModule, go_version: str) -> Path:
    """The folder of a module's programs, compiled if nobody has done so yet."""
    name = key(module, go_version)
    folder = cache_dir() / "bin" / module.name
    target = folder / name
    if target.exists():  # and needn't wait for a build of another version
        os.utime(target)
        return target
    with locked(folder / ".lock"):  # two builds at once would only slow each other down
        if not target.exists():
            say(f"building {module.title}")
            started = time.monotonic()
            # Complete or absent: a killed build leaves a `.` folder, which the next one removes.
            for half in folder.glob(".building-*"):
                shutil.rmtree(half)
            half = Path(tempfile.mkdtemp(prefix=".building-", dir=folder))
            _compile(module, half)
            half.chmod(0o755)
            half.rename(target)
            say(f"built {module.title} in {time.monotonic() - started:.0f} s")
        os.utime(target)
        _forget_unused(folder, name)
    return target


def binaries(kube_version: str = DEFAULT_KUBE_VERSION) -> Binaries:
    """All programs of the cluster: seconds when they are there, ten minutes on 2 cores when not.

    Raises:
        MissingError: Go isn't installed.
        HarnessError: this Kubernetes has no go.mod here, or something doesn't compile.
    """
    parts = modules(kube_version)
    version = _go_version()
    folders = {module.name: _built(module, version) for module in parts}
    return Binaries(
        kubernetes=folders["kubernetes"] / "kubernetes",
        etcd=folders["etcd"] / "etcd",
        containerd=folders["containerd"],
    )
