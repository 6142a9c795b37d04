# SPDX-License-Identifier: Apache-2.0
"""The main job from end to end, as `make demo` runs it, and commands against the kept cluster."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.demo.demos import DEMO, PROJECT, DemoRun

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("demo")]

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: quarter
  annotations: {gpu-fraction: "0.25"}
spec:
  containers: [{name: main, image: ubuntu}]
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoRun]:
    run = DemoRun([*DEMO, "--keep"], tmp_path_factory.mktemp("home"))
    try:
        run.wait_for("goes on until Ctrl-C")
        yield run
    finally:
        run.close()


def test_every_promise_holds(kept: DemoRun) -> None:
    assert kept.verdicts() == dict.fromkeys((1, 2, 3, 4, 5), "PASS")
    assert "All 5 promises hold" in kept.output


def test_what_the_scheduler_says_stands_beside_what_the_ledger_says(kept: DemoRun) -> None:
    assert "2 Insufficient gpuslice.dev/fit-0.5" in kept.output
    assert "the ledger says: no single GPU has that much free" in kept.output
    assert "3517 MiB" in kept.output


def test_the_readme_shows_lines_that_the_demo_really_prints(kept: DemoRun) -> None:
    readme = (PROJECT / "README.md").read_text()
    excerpt = readme.split("```text\n")[1].split("```")[0].splitlines()
    assert len(excerpt) > 10
    assert [line for line in excerpt if line not in kept.output] == []


def test_the_commands_work_on_the_kept_cluster(kept: DemoRun, tmp_path: Path) -> None:
    shown = kept.command("get", "pods", "-o", "wide").stdout
    assert shown.splitlines()[0].split()[:4] == ["NAME", "READY", "STATUS", "AGE"]
    assert "gpu-sharing-mem-1" in shown
    nodes = json.loads(kept.command("get", "gpunodes", "-o", "json").stdout)["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["node-a", "node-b", "node-c"]
    file = tmp_path / "pod.yaml"
    file.write_text(POD)
    assert kept.command("apply", "-f", str(file)).stdout == "pod/quarter created\n"
    deadline = time.monotonic() + 20
    while "claim Held" not in (said := kept.command("explain", "pod", "quarter").stdout):
        assert time.monotonic() < deadline, said
    assert "default/quarter has 0.25 on node node-b (pod Running, claim Held)" in said
    assert "5758 of 23034 MiB, 25 of 100 slices" in said
    assert kept.command("delete", "pod", "quarter").stdout == "pod/quarter deleted\n"
    refused = kept.command("get", "pods", "nobody")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert 'pods "nobody" not found' in refused.stderr


def test_the_examples_can_be_applied_again_and_what_waits_is_explained(kept: DemoRun) -> None:
    again = kept.command("apply", "-f", "deploy/examples")
    assert again.returncode == 0, again.stderr
    assert "pod/gpu-sharing-pod-1 created" in again.stdout
    assert "pod/gpu-sharing-pod-2 unchanged" in again.stdout
    assert "queue/test unchanged" in again.stdout
    said = kept.command("explain", "pod", "gpu-sharing-pod-1").stdout
    assert "default/gpu-sharing-pod-1 is Pending: it asks for 0.5, 11517 MiB of one GPU" in said
    assert "the ledger says: no single GPU has that much free" in said


def test_a_pod_that_is_wrong_is_refused_with_the_webhooks_own_words(
    kept: DemoRun, tmp_path: Path
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(POD.replace("0.25", "1.5"))
    refused = kept.command("apply", "-f", str(file))
    assert refused.returncode == 1
    assert 'metadata.annotations["gpu-fraction"]: "1.5" is more than one GPU' in refused.stderr


def test_ctrl_c_ends_everything_within_seconds(tmp_path: Path) -> None:
    run = DemoRun([*DEMO], tmp_path)
    try:
        run.wait_for("pod/gpu-sharing-pod-1 created")
        assert len(run.left_behind()) >= 4  # the demo, its webhook, two device plugins
        run.send(signal.SIGINT)
        assert run.end(20) == 130
        run.wait_until_nothing_is_left(1)
        assert run.folders()
        assert not any(folder.exists() for folder in run.folders())
    finally:
        run.close()


def test_a_killed_demo_takes_its_processes_along(tmp_path: Path) -> None:
    run = DemoRun([*DEMO], tmp_path)
    try:
        run.wait_for("pod/gpu-sharing-pod-1 created")
        assert run.left_behind()
        run.send(signal.SIGKILL)
        run.end(5)
        run.wait_until_nothing_is_left(20)
    finally:
        run.close()
