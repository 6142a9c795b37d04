# SPDX-License-Identifier: Apache-2.0
"""Logs as machines and people read them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from gpuslice.runtime import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Leave logging as it was: it is one for the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_what_every_line_has_first() -> None:
    """So that a person can read down a column all the same."""
    stream = io.StringIO()
    logs.configure(stream=stream)
    logs.get("agent").info("slices_allocated", pod="default/p", slices=50)
    (line,) = written(stream)
    assert list(line)[:3] == ["time", "level", "event"]
    assert line["time"].endswith("Z")
    assert (line["level"], line["event"], line["pod"], line["slices"], line["logger"]) == (
        "info",
        "slices_allocated",
        "default/p",
        50,
        "agent",
    )


def test_libraries_write_in_the_same_form() -> None:
    """With their extra values as keys."""
    stream = io.StringIO()
    logs.configure(stream=stream)
    logging.getLogger("some.library").warning("watch_broke", extra={"resource": "pods"})
    (line,) = written(stream)
    assert (line["event"], line["resource"], line["logger"]) == (
        "watch_broke",
        "pods",
        "some.library",
    )


def test_a_level_is_the_least_that_is_written() -> None:
    """And chatty libraries are held to warnings."""
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    logs.get("a").debug("unseen")
    logging.getLogger("urllib3").info("unseen")
    logs.get("a").warning("seen")
    assert [line["event"] for line in written(stream)] == ["seen"]


def test_an_exception_comes_in_one_line() -> None:
    """A traceback of many lines would be as many log entries."""
    stream = io.StringIO()
    logs.configure(stream=stream)
    try:
        int("bad")
    except ValueError:
        logs.get("a").exception("broke", gpu_uuid="GPU-1")
    (line,) = written(stream)
    assert "ValueError: invalid literal" in line["exception"]
    assert line["gpu_uuid"] == "GPU-1"


def test_what_json_does_not_know_is_written_as_text() -> None:
    """A log line must never fail."""
    stream = io.StringIO()
    logs.configure(stream=stream)
    logs.get("a").info("odd", value={1, 2}.__class__, key={1: object})
    assert written(stream)[0]["value"] == "<class 'set'>"


def test_a_terminal_gets_lines_for_people() -> None:
    """Without JSON."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    logs.configure(stream=stream)
    logs.get("a").info("slices_allocated", pod="p")
    assert "slices_allocated" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_values_bound_to_a_request_are_in_each_of_its_lines() -> None:
    """The uid of a review, say."""
    stream = io.StringIO()
    logs.configure(stream=stream)
    with structlog.contextvars.bound_contextvars(uid="r-1"):
        logs.get("a").info("one")
        logging.getLogger("b").warning("two")
    assert [line["uid"] for line in written(stream)] == ["r-1", "r-1"]
