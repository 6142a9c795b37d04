# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from gpuslice.sim.kubelet.runs import PodRun


def new_run(*words: str, init: list[dict[str, Any]] | None = None, policy: str = "Never") -> PodRun:
    containers = [
        {"name": f"app-{number}", "args": ["sleep", each]} for number, each in enumerate(words)
    ]
    spec = {"initContainers": init or [], "containers": containers, "restartPolicy": policy}
    return PodRun(pod={"spec": spec}, begins_at=0.0)


def start_all(run: PodRun, now: float) -> list[str]:
    started = []
    while (part := run.next_to_start(now)) is not None:
        run.start(part, now)
        started.append(part.name)
        run.end_due(now)
    return started


def test_nothing_starts_before_its_time() -> None:
    run = new_run("5")
    run.begins_at = 1.0
    assert start_all(run, 0.9) == []
    assert run.next_due() == 1.0
    assert run.phase == "Pending"
    assert start_all(run, 1.0) == ["app-0"]
    assert run.phase == "Running"
    assert run.next_due() == 6.0


def test_a_pod_succeeds_when_its_last_container_has_ended() -> None:
    run = new_run("5", "8")
    start_all(run, 0)
    run.end_due(5)
    assert (run.phase, run.has_ended) == ("Running", False)
    run.end_due(8)
    assert (run.phase, run.has_ended) == ("Succeeded", True)


def test_a_container_without_an_end_runs_for_ever() -> None:
    run = new_run("infinity")
    start_all(run, 0)
    assert run.next_due() is None
    assert run.end_due(1e9) == ()


def test_init_containers_run_one_after_the_other_and_sidecars_beside() -> None:
    init = [
        {"name": "init", "args": ["sleep", "2"]},
        {"name": "side", "restartPolicy": "Always"},
        {"name": "quick"},
    ]
    run = new_run("5", init=init)
    assert start_all(run, 0) == ["init"]
    assert start_all(run, 1) == []
    run.end_due(2)
    assert start_all(run, 2) == ["side", "quick", "app-0"]
    assert [part.name for part in run.running] == ["side", "app-0"]
    assert [part.name for part in run.end_due(7)] == ["app-0", "side"]
    assert run.phase == "Succeeded"


def test_with_restart_policy_always_a_container_starts_again() -> None:
    run = new_run("0", policy="Always")
    assert start_all(run, 0) == ["app-0"]
    assert run.phase == "Running"
    due = run.next_due()
    assert due is not None
    assert due > 0
    assert start_all(run, due) == ["app-0"]
    assert run.parts[0].restarts == 1


def test_a_killed_pod_has_failed() -> None:
    run = new_run("5", "1")
    start_all(run, 0)
    run.end_due(1)
    assert [part.name for part in run.kill(2)] == ["app-0"]
    assert (run.phase, run.has_ended) == ("Failed", True)
    assert run.next_to_start(3) is None


def test_a_pod_stopped_before_its_start_has_failed() -> None:
    run = new_run("5")
    run.kill(0)
    assert run.phase == "Failed"


def test_a_container_that_can_not_start_is_tried_again_later() -> None:
    run = new_run("5")
    run.fail_to_start(run.parts[0], "no device", 10.0)
    assert run.has_trouble
    assert run.next_to_start(9) is None
    assert run.next_due() == 10.0
    assert start_all(run, 10) == ["app-0"]
    assert not run.has_trouble


def test_speed_shortens_naps() -> None:
    run = PodRun(
        pod={"spec": {"containers": [{"name": "a", "args": ["sleep", "60"]}]}},
        begins_at=0.0,
        speed=10.0,
    )
    start_all(run, 0)
    assert run.next_due() == 6.0
