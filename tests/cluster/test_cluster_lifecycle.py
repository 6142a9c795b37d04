# SPDX-License-Identifier: Apache-2.0
"""Clusters come and go, several at once, and leave nothing."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys

import pytest

from tests.cluster.conftest import kube_version
from tests.cluster.harness import traces
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.errors import HarnessError
from tests.cluster.harness.gpus import plan
from tests.cluster.harness.paths import REPOSITORY
from tests.cluster.harness.waiting import wait_until
from tests.cluster.harness.workloads import create_running, pod

ONE_NODE = (plan("node-a", gpu_count=1),)
OWNER = """\
import signal, sys
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.gpus import plan
cluster = Cluster((plan("node-a", gpu_count=1),), name=sys.argv[1], kube_version=sys.argv[2])
cluster.up()
print("up", cluster._keeper.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def name() -> str:
    return f"test-{secrets.token_hex(3)}"


def test_two_at_once_have_the_same_addresses_and_do_not_meet(cluster: Cluster, name: str) -> None:
    with Cluster(ONE_NODE, name=name, kube_version=kube_version()) as other:
        mine = create_running(cluster.api, pod("twin", node="node-a"))
        theirs = create_running(other.api, pod("twin", node="node-a"))
        assert mine["metadata"]["uid"] != theirs["metadata"]["uid"]
        assert mine["status"]["hostIP"] == theirs["status"]["hostIP"]
        listed = [each.api.items("/api/v1/nodes") for each in (cluster, other)]
        assert [len(nodes) for nodes in listed] == [3, 1]
    assert traces.of_cluster(name) == []
    cluster.wait_ready()
    cluster.kubectl("delete", "pod", "twin", "--now")


def test_a_second_cluster_of_one_name_is_refused(cluster: Cluster) -> None:
    with pytest.raises(HarnessError, match="is up already"):
        Cluster(ONE_NODE, name=cluster.name, kube_version=kube_version()).up()
    assert cluster.api.is_ready()


def test_nothing_is_left_when_it_is_down(able: None, name: str) -> None:
    before = traces.of_machine()
    with Cluster(ONE_NODE, name=name, kube_version=kube_version()) as made:
        create_running(made.api, pod("running"))
        assert len(traces.of_cluster(name)) > 10
    assert traces.of_cluster(name) == []
    assert before == traces.of_machine()


def _owner(name: str) -> tuple[subprocess.Popen[str], int]:
    """A process that has brought a cluster up, and the id of the cluster's keeper."""
    process = subprocess.Popen(
        (sys.executable, "-c", OWNER, name, kube_version()),
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    said, keeper = process.stdout.readline().split()
    assert said == "up"
    return process, int(keeper)


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_nothing_is_left_when_its_owner_is_killed(able: None, name: str) -> None:
    before = traces.of_machine()
    owner, _keeper = _owner(name)
    _kill(owner)
    wait_until("it is gone", lambda: not traces.of_cluster(name), timeout_seconds=20)
    assert before == traces.of_machine()


def test_the_next_cluster_removes_what_a_killed_keeper_left(able: None, name: str) -> None:
    """The keeper's death ends all processes at once; folders and cgroups wait for the sweep."""
    owner, keeper = _owner(name)
    os.kill(keeper, signal.SIGKILL)
    _kill(owner)
    wait_until(
        "its processes are gone",
        lambda: not [line for line in traces.of_cluster(name) if line.startswith(("pr", "mo"))],
        timeout_seconds=20,
    )
    with Cluster(ONE_NODE, name=f"{name}-next", kube_version=kube_version()):
        assert traces.of_cluster(name) == []
