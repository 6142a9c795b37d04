# SPDX-License-Identifier: Apache-2.0
"""`kubectl gpuslice top` and `explain` on an API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.cli import kubectl
from gpuslice.runtime.kube.resources import NAMESPACES, PODS
from tests.wire.cli.installation import Installation, claim


@pytest.fixture
def claimed(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """Have two pods on node-a, one of another namespace, and KUBECONFIG name the cluster."""
    other = claim("b", "node-a", 4000, 17)
    other["pod"]["namespace"] = "team"
    installation.write("node-a", claims=[claim("a", "node-a"), other])
    monkeypatch.setenv("KUBECONFIG", str(installation.kubeconfig))
    return installation


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert kubectl.main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_top_shows_nodes(claimed: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "top") == [
        "NODE     GPUS   PODS   MIB           SLICES   LARGEST FREE   CLAIMED",
        "node-a   1      2      15517/23034   67/100   7517 MiB       [#############-------] 67%",
        "node-b   1      0      0/23034       0/100    23034 MiB      [--------------------] 0%",
    ]


def test_top_shows_gpus_without_headers(
    claimed: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "top", "gpus", "--no-headers") == [
        "node-a   0     2      15517/23034   67/100   open    [#############-------] 67%",
        "node-b   0     0      0/23034       0/100    open    [--------------------] 0%",
    ]
    wide = run(capsys, "top", "gpus", "-o", "wide")
    assert "PRODUCT" in wide[0]
    assert "GPU-node-a" in wide[1]


def pods_of(lines: list[str]) -> list[str]:
    return [each["pod"] for each in json.loads("\n".join(lines))["items"]]


def test_top_shows_the_contexts_pods_or_another_namespaces_or_all(
    claimed: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pods_of(run(capsys, "top", "pods", "-o", "json")) == ["a"]
    assert pods_of(run(capsys, "top", "pods", "-o", "json", "-n", "team")) == ["b"]
    assert pods_of(run(capsys, "top", "pods", "-o", "json", "-A")) == ["a", "b"]
    content = yaml.safe_load("\n".join(run(capsys, "top", "pods", "-o", "yaml", "-n", "team")))
    assert content["items"][0]["claimedMiB"] == 4000


def test_another_context_brings_its_namespace(
    claimed: Installation, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    content: dict[str, Any] = yaml.safe_load(claimed.kubeconfig.read_text(encoding="utf-8"))
    (first,) = content["contexts"]
    team = {"name": "team", "context": {**first["context"], "namespace": "team"}}
    content["contexts"].append(team)
    file = tmp_path / "two-contexts"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    flags = ("--kubeconfig", str(file), "-o", "json")
    assert pods_of(run(capsys, "top", "pods", *flags)) == ["a"]
    assert pods_of(run(capsys, "top", "pods", *flags, "--context", "team")) == ["b"]


def test_an_unknown_context_is_said_plainly(
    claimed: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kubectl.main(["top", "--context", "nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_explain_says_why_a_pod_waits(
    claimed: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    claimed.client.create(NAMESPACES, {"metadata": {"name": "team"}})
    body = {
        "metadata": {"name": "big", "namespace": "team", "annotations": {"gpu-fraction": "1"}},
        "spec": {"containers": [{"name": "main", "image": "ubuntu"}]},
    }
    claimed.client.create(PODS, body)
    claimed.write("node-b", claims=[claim("c", "node-b")])
    lines = run(capsys, "explain", "pod/big", "-n", "team")
    assert lines[0] == "team/big is Pending: it asks for 1, 23034 MiB of one GPU"
    assert "  the ledger says: no single GPU has that much free" in lines
    fact = json.loads("\n".join(run(capsys, "explain", "big", "-n", "team", "-o", "json")))
    assert fact["kind"] == "Waiting"
    assert [(each["node"], each["largest_free"]) for each in fact["nodes"]] == [
        ("node-a", "0.326"),
        ("node-b", "0.5"),
    ]


def test_explain_of_a_pod_that_is_not_there_fails_in_one_line(
    claimed: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kubectl.main(["explain", "nobody"]) == 1
    assert capsys.readouterr().err == 'Error: pods "nobody" not found\n'
