# SPDX-License-Identifier: Apache-2.0
"""An installation for each test, to break."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.wire.cli.installation import Installation


@pytest.fixture
def installation() -> Iterator[Installation]:
    made = Installation()
    try:
        yield made
    finally:
        made.close()
