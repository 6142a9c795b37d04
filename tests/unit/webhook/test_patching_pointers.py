# SPDX-License-Identifier: Apache-2.0
"""Patches apply whatever is missing, and touch nothing else."""

from __future__ import annotations

from typing import Any

import jsonpatch
import pytest

from webhook.patching import Patch, Path, pointer


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(("metadata", "annotations", "a.b/c~d"), "/metadata/annotations/a.b~1c~0d"),
        pytest.param(("spec", "containers", 0), "/spec/containers/0"),
        pytest.param(("a", "~1"), "/a/~01", id="what looks escaped is escaped again"),
        pytest.param((), ""),
    ],
)
def test_pointers_escape_the_tilde_before_the_slash(path: Path, expected: str) -> None:
    assert expected == pointer(path)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"metadata": None}, id="null above"),
        pytest.param({"metadata": {}}, id="empty above"),
        pytest.param({"metadata": {"annotations": None}}, id="null map"),
        pytest.param({"metadata": {"annotations": {}}}, id="empty map"),
        pytest.param({"metadata": {"annotations": {"x": "y", "a/b": "old"}}}, id="others there"),
    ],
)
def test_a_value_is_put_into_a_map_in_any_state(document: dict[str, Any]) -> None:
    patch = Patch(document)
    patch.put(("metadata", "annotations", "a/b"), "1")
    patch.put(("metadata", "annotations", "c"), "2")
    after = jsonpatch.apply_patch(document, [dict(each) for each in patch.operations])
    others = ((document.get("metadata") or {}).get("annotations")) or {}
    assert {**others, "a/b": "1", "c": "2"} == after["metadata"]["annotations"]


def test_a_value_that_is_there_is_not_put_again() -> None:
    patch = Patch({"a": {"b": "1"}})
    patch.put(("a", "b"), "1")
    assert patch.operations == ()


@pytest.mark.parametrize("document", [{}, {"list": None}, {"list": []}, {"list": [1]}])
def test_a_member_is_appended_to_a_list_in_any_state(document: dict[str, Any]) -> None:
    patch = Patch(document)
    patch.append(("list",), 2)
    patch.append(("list",), 3)
    after = jsonpatch.apply_patch(document, [dict(each) for each in patch.operations])
    assert [*(document.get("list") or []), 2, 3] == after["list"]


def test_a_null_under_a_key_is_dropped_and_an_absent_key_is_not() -> None:
    document = {"a": {"null": None}}
    patch = Patch(document)
    patch.drop(("a", "null"))
    patch.drop(("a", "absent"))
    patch.drop(("b", "absent"))
    after = jsonpatch.apply_patch(document, [dict(each) for each in patch.operations])
    assert after == {"a": {}}


def test_falsy_values_keep_their_place_in_the_operation() -> None:
    patch = Patch({"a": {}})
    patch.put(("a", "empty"), "")
    assert patch.operations == ({"op": "add", "path": "/a/empty", "value": ""},)
