# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.deviceplugin.agent.world import World, l4


@pytest.fixture
def root() -> Iterator[Path]:
    """Return a folder whose path leaves room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def world(root: Path) -> Iterator[World]:
    """Return a node with two GPUs on which neither kubelet nor plugin runs yet."""
    made = World(root, l4(0), l4(1))
    yield made
    made.end()
