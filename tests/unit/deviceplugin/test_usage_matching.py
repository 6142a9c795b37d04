# SPDX-License-Identifier: Apache-2.0
"""Processes are matched to containers by container id, and what isn't told is not added up."""

from __future__ import annotations

import pytest

from deviceplugin import usage
from deviceplugin.inventory import GpuProcess
from gpuslice.contract.names import GpuUuid
from tests.unit.deviceplugin.claims import HELD, claim, gpu, pod, uid

ID, OTHER = "ab" * 32, "cd" * 32
POD = "pod0f3a7c1e_5b1d_4c3e_9a52_1f2e3d4c5b6a"


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        pytest.param(
            f"0::/kubepods.slice/kubepods-{POD}.slice/cri-containerd-{ID}.scope\n",
            ID,
            id="containerd, systemd",
        ),
        pytest.param(f"0::/kubepods/burstable/{POD}/{ID}\n", ID, id="containerd, cgroupfs"),
        pytest.param(f"0::/kubepods.slice/crio-{ID}.scope/container\n", ID, id="CRI-O"),
        pytest.param(f"0::/system.slice/docker-{ID}.scope\n", ID, id="no pod in the path"),
        pytest.param(f"0::/../cri-containerd-{ID}.scope\n", ID, id="seen from another container"),
        pytest.param(f"12:pids:/\n11:devices:/kubepods/{POD}/{ID}\n", ID, id="v1"),
        pytest.param(f"0::/kubepods/{POD}/{ID}/docker/{OTHER}\n", ID, id="outermost"),
        pytest.param("0::/user.slice/session-2.scope\n", None, id="no container"),
        pytest.param("0::/\n", None, id="own namespace"),
        pytest.param(f"0::/kubepods/{ID}ab\n", None, id="longer than an id"),
        pytest.param("", None, id="kernel thread"),
    ],
)
def test_a_container_is_found_in_its_cgroup_s_path(cgroup: str, expected: str | None) -> None:
    assert usage.container_in(cgroup) == expected


def bound(name: str, container_id: str) -> dict[str, object]:
    made = pod(name, "0.5", 50)
    made["status"]["containerStatuses"] = [
        {"name": "main", "containerID": f"containerd://{container_id}"}
    ]
    return made


def process(pid: int, used_mib: int | None, gpu_of: str = "GPU-0") -> GpuProcess:
    return GpuProcess(gpu=GpuUuid(gpu_of), pid=pid, used_mib=used_mib)


def test_a_container_s_processes_add_up_and_strangers_do_not() -> None:
    claims = [claim("a", "0.5", 50, gpu(0), state=HELD), claim("b", "0.5", 50, gpu(0), state=HELD)]
    pods = {uid("a"): bound("a", ID), uid("b"): bound("b", OTHER)}
    processes = [process(1, 6000), process(2, 6000), process(3, 100), process(4, 9000)]
    found = usage.uses(claims, pods, processes, {1: ID, 2: ID, 3: OTHER})
    assert [(use.pod.name, use.used_mib, use.claimed_mib, use.is_over) for use in found] == [
        ("a", 12000, 11517, True),
        ("b", 100, 11517, False),
    ]


def test_what_the_driver_does_not_tell_is_no_absurd_number() -> None:
    claims = [claim("a", "0.5", 50, gpu(0), state=HELD)]
    (use,) = usage.uses(claims, {uid("a"): bound("a", ID)}, [process(1, None)], {1: ID})
    assert (use.used_mib, use.is_over) == (0, False)


def test_use_of_a_gpu_that_is_not_claimed_is_over_the_claim() -> None:
    claims = [claim("a", "0.5", 50, gpu(0), state=HELD)]
    found = usage.uses(claims, {uid("a"): bound("a", ID)}, [process(1, 5, "GPU-1")], {1: ID})
    assert [(use.gpu, use.claimed_mib, use.is_over) for use in found] == [
        ("GPU-0", 11517, False),
        ("GPU-1", 0, True),
    ]


def test_a_pod_whose_containers_are_not_known_yet_uses_nothing() -> None:
    claims = [claim("a", "0.5", 50, gpu(0), state=HELD)]
    (use,) = usage.uses(claims, {}, [process(1, 5)], {1: ID})
    assert use.used_mib == 0
