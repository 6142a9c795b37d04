# SPDX-License-Identifier: Apache-2.0
"""`gpuslice explain -f`: what admission would do, offline, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.cli.main import main

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"
GOLDEN = Path(__file__).parent / "golden"
ADOPT_KAI = ("--settings", str(EXAMPLES / "settings" / "adopt-kai.yaml"))

WRONG = """
apiVersion: v1
kind: Pod
metadata: {name: wrong, annotations: {gpu-fraction: "1.5", gpu-fraction-num-devices: "none"}}
spec: {nodeName: node-a, containers: [{name: main}]}
"""
UNQUOTED = """
apiVersion: v1
kind: Pod
metadata: {name: unquoted, annotations: {gpu-fraction: 0.5}}
spec: {containers: [{name: main}]}
"""
CRON_JOB = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "0 3 * * *"
  jobTemplate:
    spec:
      template:
        metadata: {annotations: {gpu-memory: 4Gi, gpu-fraction-num-devices: "2"}}
        spec: {restartPolicy: Never, containers: [{name: train}, {name: logs}]}
"""


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["explain", *arguments])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("golden", "arguments"),
    [
        pytest.param(
            "fractions",
            ("-f", str(EXAMPLES / "gpu-fraction-pods.yaml"), *ADOPT_KAI, "--gpu-memory", "23034"),
            id="the fraction pods of the examples",
        ),
        pytest.param(
            "memories",
            (
                *("-f", str(EXAMPLES / "gpu-memory-pods.yaml"), *ADOPT_KAI),
                *("--gpu-memory", "23034", "--gpu-memory", "40960"),
            ),
            id="the memory pods, on two kinds of GPU",
        ),
    ],
)
def test_the_examples_are_explained_word_for_word(
    golden: str, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = explained(capsys, *arguments)
    assert code == 0
    assert said == (GOLDEN / f"{golden}.txt").read_text()


def test_without_adoption_the_other_schedulers_pods_are_left_alone_and_told_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = explained(capsys, "-f", str(EXAMPLES / "gpu-fraction-pods.yaml"))
    assert code == 0
    assert "pod/gpu-sharing-pod-1: admitted as it is" in said
    assert "setting adoptSchedulers" in said


def test_all_that_is_wrong_is_said_at_once_and_the_exit_code_is_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(WRONG)
    code, said = explained(capsys, "-f", str(file))
    assert code == 1
    first, *errors = said.splitlines()
    assert first == "pod/wrong: REFUSED"
    assert len(errors) == 3
    assert any('["gpu-fraction"]: "1.5" is more than one GPU' in error for error in errors)
    assert any('["gpu-fraction-num-devices"]: "none"' in error for error in errors)
    assert any("spec.nodeName" in error for error in errors)


def test_a_number_without_quotes_is_shown_with_quotes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(UNQUOTED)
    code, said = explained(capsys, "-f", str(file))
    assert code == 1
    assert 'is no text; write it in quotes: gpu-fraction: "0.5"' in said


def test_a_template_is_explained_where_it_stands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(CRON_JOB)
    code, said = explained(capsys, "-f", str(file), "--gpu-memory", "23034")
    assert code == 0
    assert said.startswith(
        "cronjob/nightly (spec.jobTemplate.spec.template): admitted, "
        'with 2x4096mi of a GPU for container "train"'
    )
    assert "on each of 2 GPUs of one node" in said
    assert '.limits["nvidia.com/gpu-slice"] = "34"' in said


def test_what_has_no_pods_passes_unseen(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = explained(capsys, "-f", str(EXAMPLES / "queues.yaml"))
    assert code == 0
    assert said.splitlines()[0] == (
        "queue/default: is no pod and has no pod template: passes unseen"
    )


@pytest.mark.parametrize(
    "arguments",
    [(), ("pod",), ("node", "a"), ("-f", "x.yaml", "pod", "a")],
    ids=["nothing", "no name", "no pod", "both"],
)
def test_a_wrong_call_is_told_the_two_right_ones(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *arguments]) == 2
    assert "gpuslice explain -f pod.yaml, or gpuslice explain pod NAME" in capsys.readouterr().err


def test_wrong_settings_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("slicesPerGpu: 7\n")
    assert main(["explain", "-f", "x.yaml", "--settings", str(file)]) == 1
    assert "slicesPerGpu" in capsys.readouterr().err
