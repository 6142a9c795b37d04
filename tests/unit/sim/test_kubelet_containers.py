# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from gpuslice.sim.kubelet import containers


@pytest.mark.parametrize(
    ("container", "seconds"),
    [
        pytest.param({"args": ["sleep", "5"]}, 5, id="args"),
        pytest.param({"command": ["/bin/sleep", "2.5"]}, 2.5, id="path"),
        pytest.param({"command": ["sleep"], "args": ["3m"]}, 180, id="minutes"),
        pytest.param({"command": ["sh", "-c", "sleep 5 && echo done"]}, 5, id="shell"),
        pytest.param({"command": ["sh", "-c", "sleep 5; sleep 1"]}, 6, id="two naps"),
        pytest.param({"args": ["sleep", "infinity"]}, None, id="infinity"),
        pytest.param({"command": ["sh", "-c", "sleep 5; sleep inf"]}, None, id="inf"),
        pytest.param({"command": ["python", "train.py"]}, None, id="no sleep"),
        pytest.param({"command": ["oversleep", "5"]}, None, id="another program"),
        pytest.param({"args": None}, None, id="nothing"),
        pytest.param({"args": ["sleep", "0"]}, 0, id="zero"),
    ],
)
def test_a_container_runs_as_long_as_it_sleeps(
    container: dict[str, Any], seconds: float | None
) -> None:
    assert containers.run_seconds(container) == seconds


POD = {
    "metadata": {"name": "one", "namespace": "team", "annotations": {"a/b": "c"}},
    "spec": {"nodeName": "node-a"},
}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param([], {"A": "first", "B": "second"}, id="the first plugin wins"),
        pytest.param([{"name": "A", "value": "pod"}], {"A": "pod", "B": "second"}, id="pod wins"),
        pytest.param([{"name": "C"}], {"A": "first", "B": "second", "C": ""}, id="empty"),
        pytest.param(
            [{"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            {"A": "first", "B": "second", "C": "node-a"},
            id="field",
        ),
        pytest.param(
            [
                {
                    "name": "C",
                    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a/b']"}},
                }
            ],
            {"A": "first", "B": "second", "C": "c"},
            id="annotation",
        ),
        pytest.param(
            [{"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            {"A": "first", "B": "second"},
            id="no secrets here",
        ),
    ],
)
def test_the_environment_is_the_plugins_then_the_pods(
    env: list[dict[str, Any]], expected: dict[str, str]
) -> None:
    plugins = [{"A": "first"}, {"A": "late", "B": "second"}]
    assert containers.environment(POD, {"name": "main", "env": env}, plugins) == expected
