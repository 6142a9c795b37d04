# SPDX-License-Identifier: Apache-2.0
"""A JSON patch in words."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.cli.patch_words import lines_of

POD = {
    "metadata": {"name": "a", "labels": {"app": "x"}},
    "spec": {"schedulerName": "other", "containers": [{"name": "train"}], "tolerations": [1]},
}


@pytest.mark.parametrize(
    ("operation", "lines"),
    [
        pytest.param(
            {"op": "add", "path": "/metadata/labels/gpuslice.dev~1share", "value": "0.5"},
            ['sets metadata.labels["gpuslice.dev/share"] = "0.5"'],
            id="a key with a slash",
        ),
        pytest.param(
            {"op": "replace", "path": "/spec/schedulerName", "value": "default-scheduler"},
            ['changes spec.schedulerName from "other" to "default-scheduler"'],
            id="a change shows both values",
        ),
        pytest.param(
            {
                "op": "add",
                "path": "/spec/containers/0/resources",
                "value": {"limits": {"nvidia.com/gpu-slice": "50"}, "requests": {}},
            },
            ['sets spec.containers["train"].resources.limits["nvidia.com/gpu-slice"] = "50"'],
            id="a map is one line for each value, an empty one none",
        ),
        pytest.param(
            {"op": "remove", "path": "/metadata/labels/app"},
            ['removes metadata.labels["app"] (was "x")'],
            id="a removal shows what was there",
        ),
        pytest.param(
            {"op": "add", "path": "/spec/tolerations/-", "value": {"key": "k"}},
            ['sets spec.tolerations[new] = {"key": "k"}'],
            id="an appended member stays whole",
        ),
        pytest.param(
            {
                "op": "add",
                "path": "/spec/affinity/nodeAffinity/"
                "preferredDuringSchedulingIgnoredDuringExecution/-",
                "value": {
                    "weight": 20,
                    "preference": {
                        "matchExpressions": [
                            {"key": "room", "operator": "Gt", "values": ["49"]},
                            {"key": "room", "operator": "Lt", "values": ["60"]},
                        ]
                    },
                },
            },
            ["prefers nodes with room above 49 and room below 60 (weight 20)"],
            id="a preference in words",
        ),
        pytest.param(
            {"op": "replace", "path": "/metadata/labels/app", "value": "x"}, [], id="no change"
        ),
    ],
)
def test_each_operation_has_its_words(operation: dict[str, Any], lines: list[str]) -> None:
    assert lines == lines_of(POD, [operation])
