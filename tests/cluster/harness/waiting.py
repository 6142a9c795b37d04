# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .errors import TimedOutError

Found = TypeVar("Found")


def wait_until(
    what: str,
    look: Callable[[], Found],
    *,
    timeout_seconds: float = 60,
    pause_seconds: float = 0.1,
    seen: Callable[[], object] | None = None,
) -> Found:
    """Look again and again until there is something truthy, and return it.

    Args:
        what: the condition, as a sentence: for the message.
        look: what is asked; also answers None or False.
        timeout_seconds: when to give up.
        pause_seconds: between two looks.
        seen: asked for the message when time is up.

    Raises:
        TimedOutError: it didn't come true.
    """
    deadline = time.monotonic() + timeout_seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            last = seen() if seen is not None else found
            raise TimedOutError(f"not within {timeout_seconds} s: {what}; last seen: {last}")
        time.sleep(pause_seconds)
    return found
