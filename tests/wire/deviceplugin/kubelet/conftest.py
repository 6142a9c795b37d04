# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from gpuslice.sim.kubelet.bare import BareKubelet
from gpuslice.sim.kubelet.quirks import Quirks


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Return a folder whose path leaves room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def kubelet(short_path: Path) -> Iterator[BareKubelet]:
    """Return a kubelet that isn't started yet; one of the tests' own uses may have ended it."""
    made = BareKubelet(short_path, rng=Random(7), quirks=Quirks(), monotonic=time.monotonic)
    made.plugin_folder.mkdir(parents=True)
    yield made
    made.stop()
