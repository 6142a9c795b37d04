# SPDX-License-Identifier: Apache-2.0
"""The list of shares in use, over the real API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuslice.contract.shares import Share, parse_share
from gpuslice.runtime.kube.resources import GPU_SHARES, PODS
from gpuslice.runtime.kube.watch import WatchCache
from tests.wire.webhook.rig import Cluster, eventually
from webhook.podcache import watch_pods
from webhook.shares import ShareKeeper

IDLE_SECONDS = 600.0


class Hours:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Replica:
    """One replica's keeper, driven by hand."""

    def __init__(self, cluster: Cluster, standing: dict[Share, int]) -> None:
        self.clock = Hours()
        self.pods = watch_pods(cluster.client, "nvidia.com/gpu-slice")
        self.listed = WatchCache(cluster.client, GPU_SHARES)
        self.keeper = ShareKeeper(
            client=cluster.client,
            pods=self.pods,
            listed=self.listed,
            standing=lambda: standing,
            idle_seconds=IDLE_SECONDS,
            clock=self.clock,
        )
        for cache in (self.pods, self.listed):
            cache.start()
            assert cache.wait_ready(10)

    def sees(self, name: str) -> bool:
        return self.listed.get(name) is not None

    def stop(self) -> None:
        self.keeper.stop()
        self.pods.stop()
        self.listed.stop()


@pytest.fixture
def bare() -> Iterator[Cluster]:
    cluster = Cluster(hooked=False)
    yield cluster
    cluster.close()


def admitted_pod(name: str, share: str, slices: int, fit: str = "") -> dict[str, object]:
    amounts = {"nvidia.com/gpu-slice": str(slices), f"gpuslice.dev/fit-{fit or share}": "1"}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"gpuslice.dev/share": share},
        },
        "spec": {
            "containers": [
                {"name": "c", "image": "i", "resources": {"limits": amounts, "requests": amounts}}
            ]
        },
    }


def listed(cluster: Cluster) -> dict[str, int]:
    return {
        each["metadata"]["name"]: each["spec"]["slices"] for each in cluster.client.list(GPU_SHARES)
    }


def test_standing_shares_and_those_of_pods_are_listed_with_their_largest_k(bare: Cluster) -> None:
    replica = Replica(bare, {parse_share("0.5"): 50})
    bare.client.create(PODS, admitted_pod("a", "4000mi", 4))
    bare.client.create(PODS, admitted_pod("b", "4000mi", 17))
    bare.client.create(PODS, admitted_pod("c", "0.3", 30, fit="0.7"))
    eventually(lambda: len(replica.pods) == 3)

    def kept() -> bool:
        replica.keeper.keep()
        return listed(bare) == {"0.5": 50, "4000mi": 17, "0.7": 30}

    eventually(kept)
    replica.stop()


def test_a_larger_k_raises_the_listed_one_and_a_smaller_does_not_lower_it(bare: Cluster) -> None:
    standing = {parse_share("4000mi"): 4}
    replica = Replica(bare, standing)
    replica.keeper.keep()
    standing[parse_share("4000mi")] = 17
    replica.keeper.keep()
    assert listed(bare) == {"4000mi": 17}
    standing[parse_share("4000mi")] = 5
    replica.keeper.keep()
    assert listed(bare) == {"4000mi": 17}
    replica.stop()


def test_an_unused_share_goes_after_a_while_and_a_used_one_stays(bare: Cluster) -> None:
    replica = Replica(bare, {})
    bare.client.create(PODS, admitted_pod("a", "0.3", 30))
    eventually(lambda: len(replica.pods) == 1)
    eventually(lambda: (replica.keeper.keep(), replica.sees("0.3"))[1])
    replica.clock.now += 2 * IDLE_SECONDS
    replica.keeper.keep()
    assert listed(bare) == {"0.3": 30}
    bare.client.delete(PODS, "a", namespace="default", grace_seconds=0)
    eventually(lambda: len(replica.pods) == 0)

    def idle_seen() -> bool:
        replica.keeper.keep()
        return bool(replica.keeper._unused_since)

    eventually(idle_seen)
    replica.clock.now += IDLE_SECONDS - 1
    replica.keeper.keep()
    assert listed(bare) == {"0.3": 30}
    replica.clock.now += 2
    replica.keeper.keep()
    assert listed(bare) == {}
    replica.stop()


def test_two_replicas_list_the_same_shares_without_strife(bare: Cluster) -> None:
    standing = {parse_share(text): 10 for text in ("0.1", "0.2", "0.5", "1")}
    replicas = [Replica(bare, standing), Replica(bare, standing)]
    for replica in replicas:
        replica.keeper.keep()
    for replica in replicas:
        eventually(lambda it=replica: len(it.listed) == 4)  # type: ignore[misc]  # bound now
        replica.keeper.keep()
        replica.stop()
    assert listed(bare) == {"0.1": 10, "0.2": 10, "0.5": 10, "1": 10}
