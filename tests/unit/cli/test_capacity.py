# SPDX-License-Identifier: Apache-2.0
"""What an empty node publishes, and what autoscalers are told of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from deviceplugin import publication
from gpuslice.cli import kubectl
from gpuslice.cli.capacity import autoscalers, empty_node
from gpuslice.contract import names
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import ShareError
from gpuslice.contract.slices import SliceBy, SliceRule

RULES = [
    pytest.param(SliceRule(), id="by fraction"),
    pytest.param(SliceRule(slices_per_gpu=10), id="in tenths"),
    pytest.param(SliceRule(slice_by=SliceBy.MEMORY, slice_memory_mib=1024), id="by memory"),
]
NODE = ["--gpus", "4", "--gpu-memory", "23034"]
SHARES = ["--share", "0.5", "--share", "4000Mi"]


@pytest.mark.parametrize("rule", RULES)
def test_it_is_what_the_agent_publishes_of_such_a_node(rule: SliceRule) -> None:
    shares = [empty_node.read_share(text) for text in ("0.5", "4000Mi", "2x0.5", "0.333", "1")]
    empty = empty_node.ledger(4, 23034, rule)
    demands = [Demand(share=each, slices=rule.slices_of_share(each, [23034])) for each in shares]
    published = publication.values(empty, demands, (), names.SLICE_RESOURCE)
    found = empty_node.resources(empty, shares, rule, names.SLICE_RESOURCE)
    assert found == {
        names.SLICE_RESOURCE: sum(gpu.slices for gpu in empty.gpus),
        **published,
    }


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("0.5", "0.5"),
        ("50%", "0.5"),
        ("4000mi", "4000mi"),
        ("4000Mi", "4000mi"),
        ("4Gi", "4096mi"),
        ("2x0.50", "2x0.5"),
        ("2x4Gi", "2x4096mi"),
        ("1", "1"),
    ],
)
def test_a_share_may_be_written_as_in_an_annotation(text: str, share: str) -> None:
    assert str(empty_node.read_share(text)) == share


@pytest.mark.parametrize("text", ["", "0", "1.5", "x", "0x0.5", "much", "2x"])
def test_what_is_no_share_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ShareError, match=r"e\.g\. 0\.5, 50%, 4000Mi, 2x0\.5"):
        empty_node.read_share(text)


def test_a_person_reads_resources_tags_and_overlay(capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl.main(["capacity", *NODE, *SHARES]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "RESOURCE                  VALUE",
        "nvidia.com/gpu-slice      400",
        "gpuslice.dev/fit-0.5      8",
        "gpuslice.dev/fit-4000mi   20",
    ]
    assert "k8s.io/cluster-autoscaler/node-template/resources/gpuslice.dev/fit-0.5=8" in lines
    assert "kind: NodeOverlay" in lines


def test_karpenters_overlay_can_be_applied_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--for", "karpenter", "--instance-type", "g6.12xlarge"]
    assert kubectl.main(["capacity", *NODE, *SHARES, *flags]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": "gpuslice-g6-12xlarge"},
        "spec": {
            "requirements": [
                {
                    "key": "node.kubernetes.io/instance-type",
                    "operator": "In",
                    "values": ["g6.12xlarge"],
                }
            ],
            "capacity": {
                "nvidia.com/gpu-slice": "400",
                "gpuslice.dev/fit-0.5": "8",
                "gpuslice.dev/fit-4000mi": "20",
            },
        },
    }


def test_tags_are_plain_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["capacity", *NODE, "--share", "1", "--for", "cluster-autoscaler", "-o", "json"]
    assert kubectl.main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == {
        f"{autoscalers.TAG_PREFIX}nvidia.com/gpu-slice": "400",
        f"{autoscalers.TAG_PREFIX}gpuslice.dev/fit-1": "4",
    }


def test_without_shares_it_is_those_of_the_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("{shares: ['0.25'], slicesPerGpu: 10}", encoding="utf-8")
    assert kubectl.main(["capacity", *NODE, "--settings", str(file), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == [
        {"resource": "nvidia.com/gpu-slice", "value": 40},
        {"resource": "gpuslice.dev/fit-0.25", "value": 16},
    ]


def test_a_wrong_share_fails_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl.main(["capacity", *NODE, "--share", "1.5"]) == 1
    assert capsys.readouterr().err.startswith("Error: --share 1.5: is more than one GPU")
