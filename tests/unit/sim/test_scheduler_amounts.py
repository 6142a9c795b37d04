# SPDX-License-Identifier: Apache-2.0
"""What quantities and pods amount to."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.sim.scheduler.amounts import amount, requests_of, scored_requests_of


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [
        ("1", 1000),
        ("100m", 100),
        ("1.5", 1500),
        ("1.", 1000),
        ("1Ki", 1024 * 1000),
        ("2k", 2_000_000),
        ("1e3", 1_000_000),
        ("12E-1", 1200),
        ("1E", 10**21),
        ("1n", 1),
        ("-1", -1000),
        (3, 3000),
        ("0", 0),
    ],
)
def test_a_quantity_is_whole_thousandths_rounded_up(text: object, thousandths: int) -> None:
    """As Kubernetes reads them."""
    assert thousandths == amount(text)


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1Kib", "0x1", "1,5"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """A test that misspells one learns of it."""
    with pytest.raises(ValueError, match="no quantity"):
        amount(text)


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}} | more


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        pytest.param({"containers": [container("1"), container("2")]}, 3000, id="sum"),
        pytest.param(
            {"containers": [container("1")], "initContainers": [container("5")]}, 5000, id="init"
        ),
        pytest.param(
            {
                "containers": [container("1")],
                "initContainers": [container("2", restartPolicy="Always"), container("2")],
            },
            4000,
            id="init-beside-sidecar",
        ),
        pytest.param(
            {
                "containers": [container("3")],
                "initContainers": [container("2"), container("2", restartPolicy="Always")],
            },
            5000,
            id="sidecar-stays",
        ),
        pytest.param(
            {"containers": [container("1")], "overhead": {"cpu": "250m"}}, 1250, id="overhead"
        ),
        pytest.param({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, 2000, id="limits"),
    ],
)
def test_a_pod_takes_what_its_containers_take_at_most_at_once(
    spec: dict[str, Any], cpu: int
) -> None:
    """The table of the Kubernetes documentation on sidecars."""
    assert requests_of({"spec": spec}) == {"cpu": cpu, "pods": 1000}


def test_a_pod_that_asks_for_nothing_takes_a_place_and_is_scored_as_a_small_one() -> None:
    """Else all such pods would go to one node."""
    empty = {"spec": {"containers": [{}]}}
    assert requests_of(empty) == {"pods": 1000}
    assert scored_requests_of(empty) == {"cpu": 100, "memory": 200 * 2**20 * 1000}
