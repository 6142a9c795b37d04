# SPDX-License-Identifier: Apache-2.0
"""What krew installs: its manifest, and the launcher behind its link."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from gpuslice.cli.kubectl import COMMANDS
from gpuslice.runtime import version

ROOT = Path(__file__).parents[2]
MANIFEST = yaml.safe_load((ROOT / "deploy" / "krew.yaml").read_text(encoding="utf-8"))
LAUNCHER = ROOT / "deploy" / "krew" / "kubectl-gpuslice"


def test_the_manifest_is_of_this_version_and_names_every_command() -> None:
    spec = MANIFEST["spec"]
    assert spec["version"] == f"v{version.text()}"
    assert len(spec["shortDescription"]) <= 50
    for command in COMMANDS:
        assert f"{command} " in spec["description"].replace("\n", " ")


@pytest.mark.parametrize("platform", MANIFEST["spec"]["platforms"], ids=lambda each: each["uri"])
def test_a_platform_is_complete(platform: dict[str, object]) -> None:
    assert set(platform) == {"selector", "uri", "sha256", "bin"}
    assert platform["bin"] == LAUNCHER.name
    assert str(MANIFEST["spec"]["version"]) in str(platform["uri"])
    assert re.fullmatch("[0-9a-f]{64}", str(platform["sha256"]))


def test_the_launcher_finds_its_packages_through_krews_link(tmp_path: Path) -> None:
    store, bin_ = tmp_path / "store" / "v0", tmp_path / "bin"
    store.mkdir(parents=True)
    bin_.mkdir()
    (store / LAUNCHER.name).write_bytes(LAUNCHER.read_bytes())
    (store / LAUNCHER.name).chmod(0o755)
    # The environment's packages stand in for those of the archive.
    lib = store / "lib"
    lib.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        (lib / entry.name).symlink_to(entry)
    (lib / "gpuslice").symlink_to(ROOT / "gpuslice")
    link = bin_ / "kubectl-gpuslice"
    link.symlink_to("../store/v0/kubectl-gpuslice")
    done = subprocess.run(
        [str(link), "capacity", "--gpus", "1", "--gpu-memory", "1000", "--share", "0.5"],
        env={"PATH": os.environ["PATH"], "GPUSLICE_PYTHON": sys.base_prefix + "/bin/python3"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "gpuslice.dev/fit-0.5   2" in done.stdout, done.stderr
