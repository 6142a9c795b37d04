# SPDX-License-Identifier: Apache-2.0
"""Logs: constant event names with key-values; JSON in a cluster, colours on a terminal.

Keys are the metrics' label names: `namespace`, `pod`, `container`, `node`, `gpu_uuid`, `resource`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Literal, TextIO

import orjson
import structlog

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]
Logger = structlog.stdlib.BoundLogger

QUIET = ("urllib3", "watchfiles", "_granian", "grpc")
"""Libraries that say at INFO what only their authors care about."""


def configure(level: Level = "info", form: Format = "auto", stream: TextIO | None = None) -> None:
    """Send all logs of this process, those of libraries too, to one stream in one form.

    Args:
        level: the least important that is written.
        form: auto is console on a terminal, else JSON.
        stream: stderr by default.
    """
    out = stream or sys.stderr
    chosen = form if form != "auto" else ("console" if out.isatty() else "json")
    shared: list[Callable[..., Any]] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    last: list[Callable[..., Any]]
    if chosen == "json":
        last = [structlog.processors.format_exc_info, _ordered, _rendered]
    else:
        last = [structlog.dev.ConsoleRenderer(colors=out.isatty())]
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def get(name: str) -> Logger:
    """Return a module's logger: ``log = logs.get(__name__)``."""
    return structlog.stdlib.get_logger(name)


def about(**keys: str) -> contextlib.AbstractContextManager[Any]:
    """Add keys to every line that this thread logs meanwhile: ``with logs.about(uid=...)``."""
    return structlog.contextvars.bound_contextvars(**keys)


def _ordered(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Put what every line has first, so that a person can read down a column."""
    first = {key: event.pop(key) for key in ("time", "level", "event") if key in event}
    return first | dict(event)


def _rendered(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
