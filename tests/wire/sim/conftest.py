# SPDX-License-Identifier: Apache-2.0
"""A kubelet without an API server, and plugins that register with it."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpuslice.sim.kubelet.bare import BareKubelet
from gpuslice.sim.kubelet.quirks import Quirks
from tests.wire.sim.toyplugin import Hours, Listed, Plug, ToyPlugin, eventually


@pytest.fixture
def root() -> Iterator[Path]:
    """Return a folder whose path is short enough for unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def clock() -> Hours:
    return Hours()


@pytest.fixture
def bare(root: Path, clock: Hours) -> Iterator[BareKubelet]:
    """Return a started kubelet without an API server."""
    kubelet = BareKubelet(root, rng=Random(7), quirks=Quirks(), monotonic=clock)
    kubelet.start()
    yield kubelet
    kubelet.stop()


@pytest.fixture
def new_plugin(root: Path) -> Iterator[Plug]:
    """Return a function that makes a serving plugin; each has a socket of its own."""
    made: list[ToyPlugin] = []
    numbers = itertools.count(1)

    def make(devices: Listed = ("a", "b"), **answers: Any) -> ToyPlugin:
        folder = root / "device-plugins"
        folder.mkdir(exist_ok=True)
        plugin = ToyPlugin(folder, devices, **{"socket": f"toy-{next(numbers)}.sock"} | answers)
        made.append(plugin)
        return plugin.serve()

    yield make
    for plugin in made:
        plugin.stop()


@pytest.fixture
def plugged(bare: BareKubelet, new_plugin: Plug) -> Plug:
    """Return a function that makes a plugin and waits until kubelet counts its devices."""

    def make(devices: Listed = ("a", "b"), **answers: Any) -> ToyPlugin:
        plugin = new_plugin(devices, **answers)
        plugin.register()
        eventually(lambda: bare.counts()[0].get(plugin.resource, (0, 0))[0] == len(devices))
        return plugin

    return make
