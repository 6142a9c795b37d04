# SPDX-License-Identifier: Apache-2.0
"""The file that says which node has which GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.sim.nvml.machine import MIB
from tests.cluster.harness.errors import HarnessError
from tests.cluster.harness.gpus import read_plans, stable_uuid


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpus.yaml"


def test_memory_is_what_can_be_sold_besides_the_reserve(file: Path) -> None:
    file.write_text("nodes: {a: [{product: NVIDIA X, memoryMiB: 1000, reservedMiB: 24}]}")
    (node,) = read_plans(file)
    (gpu,) = node.gpus
    assert (gpu.product, gpu.total_bytes, gpu.reserved_bytes) == ("NVIDIA X", 1024 * MIB, 24 * MIB)


def test_gpus_of_a_node_differ_in_uuid_slot_and_device_file(file: Path) -> None:
    file.write_text("nodes: {a: [{count: 2}, {}], b: [{}]}")
    gpus = [gpu for node in read_plans(file) for gpu in node.gpus]
    assert len({gpu.uuid for gpu in gpus}) == 4
    assert [gpu.minor_number for gpu in gpus] == [0, 1, 2, 0]
    assert len({gpu.pci_bus_id for gpu in gpus[:3]}) == 3


def test_a_uuid_is_the_same_in_every_run() -> None:
    assert stable_uuid("node-a", 0) == "GPU-f0b047bd-24a9-5c5d-b233-03475ed28ee6"


def test_a_node_may_have_no_gpu(file: Path) -> None:
    file.write_text("nodes: {a: [], b:}")
    assert [node.gpus for node in read_plans(file)] == [(), ()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "`nodes` must map", id="empty"),
        pytest.param("nodes: [a]", "`nodes` must map", id="list"),
        pytest.param("nodes: {a: [{memory: 1}]}", r"nodes\.a\[0\]: unknown \['memory'\]", id="key"),
        pytest.param("nodes: {a: [x]}", r"nodes\.a\[0\]: not a mapping", id="no-mapping"),
        pytest.param("nodes: {a: [{count: 17}]}", r"\.count: 1 to 16", id="too-many"),
        pytest.param("nodes: {a: [{memoryMiB: 1.5}]}", r"\.memoryMiB: a whole", id="fraction"),
        pytest.param("nodes: {a: [}", "gpus.yaml: ", id="no-yaml"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(HarnessError, match=message):
        read_plans(file)
