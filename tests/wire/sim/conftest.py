# SPDX-License-Identifier: Apache-2.0
"""Kubelets with and without an API server, and plugins that register with them."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.resources import NODES
from gpuslice.sim.apiserver.server import ApiServer
from gpuslice.sim.kubelet.bare import BareKubelet
from gpuslice.sim.kubelet.kubelet import Kubelet
from gpuslice.sim.kubelet.quirks import Quirks
from gpuslice.sim.kubelet.remote import RemoteApi
from gpuslice.sim.kubelet.timings import Timings
from tests.wire.sim.toyplugin import RESOURCE, Hours, Listed, Plug, ToyPlugin, eventually
from tests.wire.sim.world import QUICK, World


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


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeClient]:
    with ApiServer() as server:
        client = KubeClient(config.load(server.kubeconfig(tmp_path / "kubeconfig")))
        yield client
        client.close()


@pytest.fixture
def new_world(root: Path, client: KubeClient) -> Iterator[Callable[..., World]]:
    """Return a function that starts the kubelet of node-a, with timings of choice."""
    kubelets: list[Kubelet] = []

    def make(timings: Timings = QUICK, quirks: Quirks | None = None) -> World:
        kubelet = Kubelet(
            node_name="node-a",
            root=root,
            api=RemoteApi(client),
            rng=Random(3),
            quirks=quirks or Quirks(pod_resources_burst=10_000),
            timings=timings,
        )
        kubelet.start()
        kubelets.append(kubelet)
        world = World(client, kubelet)
        eventually(lambda: client.list(NODES))
        return world

    yield make
    for kubelet in kubelets:
        kubelet.stop()
        assert kubelet.panic is None


@pytest.fixture
def world(new_world: Callable[..., World], new_plugin: Plug) -> World:
    """Return a node whose plugin offers four things."""
    world = new_world()
    new_plugin("abcd").register()
    eventually(lambda: world.amounts() == ("4", "4"))
    world.sees(RESOURCE, 4)
    return world
