# SPDX-License-Identifier: Apache-2.0
"""Write the go.mod and go.sum that build one version of Kubernetes as a library.

Kubernetes' own go.mod asks for its staging modules (k8s.io/api and so on) at v0.0.0 and replaces
them by folders, which whoever requires it doesn't inherit. So each is required here at the version
that belongs to the release: v0.36.3 for 1.36.3.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from . import build
from .errors import HarnessError
from .paths import GO_MODULES

_FOLDER = GO_MODULES / "kubernetes"
_STAGING = re.compile(r"(?m)^\s+(k8s\.io/[a-z0-9-]+) v0\.0\.0$")
_SAMPLES = ("k8s.io/sample-",)
"""Listed there, but neither published at every version nor part of any program."""


def mod_text(kube_version: str, upstream: str) -> str:
    """The go.mod before `go mod tidy`, from Kubernetes' own."""
    staging_version = f"v0.{kube_version.partition('.')[2]}"
    requires = [f"k8s.io/kubernetes v{kube_version}"] + [
        f"{module} {staging_version}"
        for module in sorted(_STAGING.findall(upstream))
        if not module.startswith(_SAMPLES)
    ]
    go = re.search(r"(?m)^go \S+$", upstream)
    godebug = re.search(r"(?m)^godebug .+$", upstream)
    lines = ["module gpuslice.dev/tests/cluster/kubernetes", ""]
    lines += [go[0], ""] if go else []
    lines += [godebug[0], ""] if godebug else []
    lines += ["require (", *(f"\t{require}" for require in requires), ")", ""]
    return "\n".join(lines)


def mod_file(kube_version: str) -> Path:
    """Where it goes: the default's name is what Go looks for, others are named by their minor."""
    if kube_version == build.DEFAULT_KUBE_VERSION:
        return _FOLDER / "go.mod"
    return _FOLDER / f"v{kube_version.rpartition('.')[0]}.mod"


def write(kube_version: str) -> Path:
    """Write both files, in place of those of the same minor version.

    Raises:
        HarnessError: there is no such Kubernetes, or Go can't find its modules.
    """
    if not re.fullmatch(r"1\.\d+\.\d+", kube_version):
        raise HarnessError(f"a Kubernetes version is like 1.36.3, not {kube_version!r}")
    downloaded = _go("mod", "download", "-json", f"k8s.io/kubernetes@v{kube_version}")
    upstream = Path(json.loads(downloaded)["GoMod"]).read_text()
    path = mod_file(kube_version)
    path.write_text(mod_text(kube_version, upstream))
    path.with_suffix(".sum").unlink(missing_ok=True)
    _go("mod", "tidy", f"-modfile={path}")
    return path


def _go(*arguments: str) -> str:
    done = subprocess.run(
        (build.go(), *arguments), cwd=_FOLDER, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise HarnessError(f"go {' '.join(arguments)}: {done.stderr[-2000:]}{done.stdout[-2000:]}")
    return done.stdout
