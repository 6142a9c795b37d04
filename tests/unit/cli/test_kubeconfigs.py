# SPDX-License-Identifier: Apache-2.0
"""Which kubeconfig a command uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.cli.kubeconfigs import NoClusterError, find_kubeconfig, kept


def test_the_named_one_wins_then_the_environments_then_the_running_demos(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("clusters: []")
    home = {"HOME": str(tmp_path)}
    with kept(config, home) as place:
        assert find_kubeconfig(None, home) == place
        assert find_kubeconfig(None, home | {"KUBECONFIG": "/a:/b"}) == Path("/a")
        assert find_kubeconfig(config, home | {"KUBECONFIG": "/a"}) == config


def test_a_kept_kubeconfig_is_for_its_owner_only_and_goes_with_the_demo(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("clusters: []")
    environment = {"HOME": "/nowhere", "XDG_STATE_HOME": str(tmp_path / "state")}
    with kept(config, environment) as place:
        assert place.stat().st_mode & 0o077 == 0
    assert not place.exists()
    with pytest.raises(NoClusterError, match="gpuslice demo --keep"):
        find_kubeconfig(None, environment)


def test_a_demo_leaves_the_kubeconfig_of_a_later_one_alone(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1")
    second.write_text("2")
    home = {"HOME": str(tmp_path)}
    with kept(second, home) as place:
        with kept(first, home):
            place.write_text("2")
        assert place.read_text() == "2"
