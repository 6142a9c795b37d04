# SPDX-License-Identifier: Apache-2.0
"""What the machine must bring: root, Go, and a few Debian packages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from .errors import MissingError

SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
CNI_PLUGINS = Path("/usr/lib/cni")

_PACKAGE_FILES: Mapping[str, str] = {
    "runc": "runc",
    "containernetworking-plugins": str(CNI_PLUGINS / "ptp"),
    "busybox-static": "busybox",
    "iproute2": "ip",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
}
"""Debian package -> the program by which we see that it is there."""

PACKAGES = tuple(sorted(_PACKAGE_FILES))


def search_path() -> str:
    """PATH with the sbin folders, which a root shell made by `su` or a CI job may lack."""
    return os.pathsep.join((os.environ.get("PATH", "/usr/bin:/bin"), *SBIN))


def which(program: str) -> str | None:
    return shutil.which(program, path=search_path())


def missing(*, find: Callable[[str], str | None] = which, euid: int | None = None) -> list[str]:
    """One line for each thing this machine lacks to run a cluster; Go is asked for by `build`."""
    lines = []
    if (os.geteuid() if euid is None else euid) != 0:
        lines.append("not root: namespaces, mounts and cgroups need it")
    lacking = [package for package in PACKAGES if find(_PACKAGE_FILES[package]) is None]
    lines += [
        f"Debian package {package} is not installed ({_PACKAGE_FILES[package]} not found): "
        "make cluster-packages"
        for package in lacking
    ]
    return lines


def require() -> None:
    """Raise MissingError with one line for each thing missing."""
    lines = missing()
    if lines:
        raise MissingError("\n".join(lines))
