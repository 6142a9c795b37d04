# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

STAND_IN = Path(__file__).with_name("nvidia_cuda_mps_control.py")


@pytest.fixture
def root() -> Iterator[Path]:
    """Return a folder whose path leaves room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def program(root: Path) -> str:
    """Return a program that is called like NVIDIA's."""
    path = root / "nvidia-cuda-mps-control"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{STAND_IN}" "$@"\n')
    path.chmod(0o755)
    return str(path)
