# SPDX-License-Identifier: Apache-2.0
"""Parts of a node and of the control plane break and come back, while pods come and go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from gpuslice.contract import names
from gpuslice.sim.observation import HandOut
from tests.cluster.harness.client import Json, pod_path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.paths import say
from tests.cluster.harness.waiting import wait_until
from tests.cluster.harness.workloads import container, create_running
from tests.cluster.product import disturbances
from tests.cluster.product.arrivals import Arrivals, unexcused
from tests.cluster.product.disturbances import DISTURBANCES
from tests.cluster.product.sharing import sharing
from tests.cluster.product.witness import Witness, exec_environment

NODE = "node-a"
MOST_EXCUSED = 6
"""Of a sudden death: the pods that were starting then, of about three a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Possession:
    """What a running pod has: all of it must outlast what happens around it."""

    container_id: str
    gpu: str
    environment: Mapping[str, str]
    hand_out: HandOut | None


def _possession(cluster: Cluster, pod: Json) -> Possession:
    metadata = pod["metadata"]
    now = cluster.api.get(pod_path(metadata["name"], metadata["namespace"]))
    assert container(now)["restartCount"] == 0
    environment = exec_environment(cluster, now, metadata["name"])
    return Possession(
        container_id=container(now)["containerID"],
        gpu=now["metadata"]["annotations"][names.GPU_ANNOTATION],
        environment={k: v for k, v in environment.items() if not k.startswith("KUBERNETES_")},
        hand_out=Witness(cluster).observe().hand_out(now),
    )


@pytest.mark.parametrize("name", DISTURBANCES)
def test_running_pods_keep_their_gpu_and_new_ones_come(
    product: Cluster, namespace: str, name: str
) -> None:
    """The ledger ends equal to the kubelets' checkpoints: the namespace's end checks that."""
    node = product.nodes[NODE]
    steady = [
        create_running(
            product.api, sharing(f"steady-{number}", fraction=part, namespace=namespace, node=NODE)
        )
        for number, part in enumerate(("0.3", "0.5"))
    ]
    before = [_possession(product, pod) for pod in steady]
    with Arrivals(product, namespace, NODE) as arrivals:
        deaths = DISTURBANCES[name](product, node)
        disturbances.wait_back(product, node)
        arrivals.wait_more(3)
    excused = len(arrivals.rejected())
    say(f"\n  {name}: {len(arrivals.fates)} pods came, {excused} were refused as they started")
    assert not list(unexcused(arrivals.rejected(), deaths))
    assert excused <= MOST_EXCUSED * len(deaths)
    if name not in disturbances.AWAY:
        assert not arrivals.unmade
    broken = [str(fate) for fate in arrivals.broken()]
    assert not broken or name == disturbances.LOSES_ENDS
    arrivals.forget_failed()
    wait_until(
        "the running pods have what they had",
        lambda: [_possession(product, pod) for pod in steady] == before,
        timeout_seconds=30,
        seen=lambda: ([_possession(product, pod) for pod in steady], before),
    )
