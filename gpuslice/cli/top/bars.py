# SPDX-License-Identifier: Apache-2.0
"""Bars: how much of something is taken, at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

WIDTH: Final = 20
NEARLY_FULL_PERCENT: Final = 90


def bar(used: int, total: int) -> str:
    """Return a bar with its percentage, which is rounded down; e.g. ``[##########----------] 50%``.

    Any use shows at least one mark, and only a full one shows all.
    """
    if total <= 0:
        return "-"
    marks = min(WIDTH, max(used * WIDTH // total, 1 if used > 0 else 0))
    return f"[{'#' * marks}{'-' * (WIDTH - marks)}] {used * 100 // total}%"


def coloured(text: str, used: int, total: int, environment: Mapping[str, str]) -> str:
    """Return a bar in its colour, or plain where NO_COLOR is set (https://no-color.org).

    click takes colours out again where the output is no terminal.
    """
    if environment.get("NO_COLOR") or total <= 0:
        return text
    if used > total:
        return click.style(text, fg="red")
    nearly = used * 100 >= total * NEARLY_FULL_PERCENT
    return click.style(text, fg="yellow" if nearly else "green")
