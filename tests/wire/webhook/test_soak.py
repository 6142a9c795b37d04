# SPDX-License-Identifier: Apache-2.0
"""Twenty seconds of what `make soak-webhook` does for half an hour."""

from __future__ import annotations

from tests.load import webhook_soak


def test_bad_input_bad_clients_and_new_certificates_harm_nobody() -> None:
    assert webhook_soak.soak(20.0, seed=1) == []
