# SPDX-License-Identifier: Apache-2.0
"""Every random sequence looks the same on a real kubelet and on the embedded one.

`DIFFERENTIAL_SEQUENCES` says how many, `DIFFERENTIAL_SEED` with which seed they begin; the seeds
of failing ones are printed, and play again with `DIFFERENTIAL_SEQUENCES=1`.
"""

from __future__ import annotations

import os
import queue
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.resources import NODES
from gpuslice.sim.apiserver.server import ApiServer
from gpuslice.sim.kubelet.quirks import Quirks
from tests.cluster.conftest import LOGS, kube_version
from tests.cluster.differential.duel import Difference, play
from tests.cluster.differential.hosts import RealHost, SimHost
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.gpus import plan
from tests.cluster.harness.paths import say
from tests.cluster.harness.waiting import wait_until

SEQUENCES = int(os.environ.get("DIFFERENTIAL_SEQUENCES") or 15)
SEED = int(os.environ.get("DIFFERENTIAL_SEED") or secrets.randbelow(1_000_000))
STEPS = 20
NODES_AT_ONCE = min(5, SEQUENCES)
MINUTES_PER_SEQUENCE = 2

Pair = tuple[RealHost, SimHost]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Return a folder whose path is short enough for unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="gsd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def hand_over_works() -> bool:
    """Whether kubelet keeps a plugin whose predecessor ends: from 1.37 on."""
    return int(kube_version().split(".")[1]) >= 37


@pytest.fixture
def pairs(able: None, short_folder: Path, hand_over_works: bool) -> Iterator[list[Pair]]:  # noqa: FBT001 - a fixture
    """Nodes of a real cluster, each with its embedded twin."""
    names = [f"node-{number}" for number in range(NODES_AT_ONCE)]
    quirks = Quirks(old_stream_ends_new_plugin=not hand_over_works)
    with (
        Cluster(
            tuple(plan(name, gpu_count=0) for name in names),
            kube_version=kube_version(),
            keep_logs=LOGS / "differential",
        ) as cluster,
        ApiServer() as server,
    ):
        real = KubeClient(config.load(cluster.kubeconfig))
        embedded = KubeClient(config.load(server.kubeconfig(short_folder / "kubeconfig")))
        hosts = []
        for number, name in enumerate(names):
            root = short_folder / name
            hosts.append(
                (
                    RealHost(cluster, cluster.nodes[name], real),
                    SimHost(root, name, embedded, seed=SEED + number, quirks=quirks),
                )
            )
        cluster.wait_ready()
        wait_until("the embedded nodes are there", lambda: len(embedded.list(NODES)) == len(names))
        yield hosts
        for _, sim in hosts:
            sim.kubelet.stop()
            assert sim.kubelet.panic is None


@pytest.mark.timeout(300 + 60 * MINUTES_PER_SEQUENCE * SEQUENCES)
def test_the_embedded_kubelet_is_as_the_real_one(
    pairs: list[Pair],
    hand_over_works: bool,  # noqa: FBT001 - a fixture
) -> None:
    """All that can be seen of both is equal after each step."""
    say(f"\n{SEQUENCES} sequences of {STEPS} steps, seeds from {SEED} on")
    seeds: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(SEQUENCES):
        seeds.put(SEED + number)
    differences: list[Difference] = []
    errors: list[BaseException] = []

    def work(pair: Pair) -> None:
        while not errors:
            try:
                seed = seeds.get_nowait()
            except queue.Empty:
                return
            started = time.monotonic()
            try:
                found = play(
                    *pair,
                    sequence=str(seed),
                    seed=seed,
                    length=STEPS,
                    hand_over_works=hand_over_works,
                )
            except BaseException as err:  # noqa: BLE001 - raised in the test's own thread
                errors.append(err)
                return
            say(f"  {seed}: {time.monotonic() - started:.0f} s{', DIFFERENT' if found else ''}")
            if found:
                say(str(found))
                differences.append(found)

    threads = [threading.Thread(target=work, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert not differences, "\n\n".join(map(str, differences))
