# SPDX-License-Identifier: Apache-2.0
"""The cluster of the tests here: one for all of them, made for the first that asks.

Where the machine can't run one the tests are skipped, with one line that says why; in CI
(`CI=true`) they fail, since there they must run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import build, deployment, prerequisites
from tests.cluster.harness.client import Api
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.paths import REPOSITORY
from tests.cluster.product import namespaced, serving

HERE = Path(__file__).parent
TEST_SECONDS = 300
LOGS = REPOSITORY / "build" / "cluster-logs"


def kube_version() -> str:
    return os.environ.get("KUBE_VERSION") or build.DEFAULT_KUBE_VERSION


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("cluster")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def able() -> None:
    """Skip, or fail in CI, where the machine lacks something."""
    lines = prerequisites.missing() + ([] if build.has_go() else [build.NO_GO])
    if lines:
        reason = "no real cluster here: " + "; ".join(lines)
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster(able: None) -> Iterator[Cluster]:
    """Three nodes with two GPUs each; tests leave it as they found it."""
    with Cluster(kube_version=kube_version(), keep_logs=LOGS) as made:
        yield made


@pytest.fixture(scope="session")
def product(cluster: Cluster) -> Cluster:
    """The same cluster with gpuslice on it, as users deploy it; all its nodes serve.

    Tests leave it as they found it, with no claims in its ledgers.
    """
    cluster.deploy(*deployment.adopted_kai())
    serving.wait_serving(cluster)
    return cluster


@pytest.fixture
def namespace(product: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, gone afterwards, and with it its pods and their claims.

    Before that, what must be true at any moment is looked at: see `witness.check`.
    """
    with namespaced.namespace(product, request.node.name) as made:
        yield made


@pytest.fixture
def api(cluster: Cluster) -> Api:
    return cluster.api
