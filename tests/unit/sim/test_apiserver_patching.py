# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
from typing import Any

import pytest

from gpuslice.sim.apiserver import patching

Json = dict[str, Any]

MERGED = [
    pytest.param({"a": "b"}, {"a": "c"}, {"a": "c"}, id="replaces"),
    pytest.param({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}, id="adds"),
    pytest.param({"a": "b"}, {"a": None}, {}, id="removes"),
    pytest.param({"a": ["b"]}, {"a": ["c"]}, {"a": ["c"]}, id="replaces lists"),
    pytest.param({"a": {"b": "c"}}, {"a": {"b": None, "d": "e"}}, {"a": {"d": "e"}}, id="nested"),
    pytest.param({}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}, id="no nulls are kept"),
    pytest.param({"a": "text"}, {"a": {"b": "c"}}, {"a": {"b": "c"}}, id="map over text"),
]


@pytest.mark.parametrize(("target", "patch", "expected"), MERGED)
def test_a_merge_patch(target: Json, patch: Json, expected: Json) -> None:
    before = copy.deepcopy(target)
    assert patching.merge(target, patch) == expected
    assert target == before


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        pytest.param(
            {"conditions": [{"type": "A", "status": "1", "reason": "x"}, {"type": "B"}]},
            {"conditions": [{"type": "A", "status": "2"}, {"type": "C"}]},
            {
                "conditions": [
                    {"type": "A", "status": "2", "reason": "x"},
                    {"type": "B"},
                    {"type": "C"},
                ]
            },
            id="conditions by type",
        ),
        pytest.param(
            {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]},
            {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]},
            {
                "containers": [
                    {"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}
                ]
            },
            id="env of a container",
        ),
        pytest.param(
            {"ownerReferences": [{"uid": "1"}, {"uid": "2"}]},
            {"ownerReferences": [{"uid": "1", "$patch": "delete"}]},
            {"ownerReferences": [{"uid": "2"}]},
            id="deletes an item",
        ),
        pytest.param(
            {"conditions": [{"type": "A"}]},
            {"conditions": [{"$patch": "replace"}, {"type": "B"}]},
            {"conditions": [{"type": "B"}]},
            id="replaces a list",
        ),
        pytest.param({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}, id="plain lists"),
        pytest.param(
            {"finalizers": ["a", "b"]},
            {"finalizers": ["c"]},
            {"finalizers": ["a", "b", "c"]},
            id="sets",
        ),
        pytest.param(
            {"finalizers": ["a", "b"]},
            {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"]},
            {"finalizers": ["b"]},
            id="deletes from a set",
        ),
        pytest.param(
            {"spec": {"a": "1", "b": "2"}},
            {"spec": {"$patch": "replace", "c": "3"}},
            {"spec": {"c": "3"}},
            id="replaces a map",
        ),
        pytest.param(
            {"capacity": {"a": "1", "b": "2"}},
            {"capacity": {"a": None}},
            {"capacity": {"b": "2"}},
            id="null",
        ),
        pytest.param(
            {"spec": {"a": "1", "b": "2"}},
            {"spec": {"$retainKeys": ["b", "c"], "c": "3"}},
            {"spec": {"b": "2", "c": "3"}},
            id="retains keys",
        ),
    ],
)
def test_a_strategic_merge_patch(target: Json, patch: Json, expected: Json) -> None:
    before = copy.deepcopy(target)
    assert patching.merge_strategically(target, patch) == expected
    assert target == before


def test_an_item_without_its_merge_key_is_refused() -> None:
    with pytest.raises(patching.PatchError, match="merge key: type"):
        patching.merge_strategically({"conditions": []}, {"conditions": [{"status": "True"}]})


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"op": "remove", "path": "/none"}, id="nothing to remove"),
        pytest.param({"op": "replace", "path": "/none", "value": 1}, id="nothing to replace"),
        pytest.param({"op": "add", "path": "/none/a", "value": 1}, id="no parent"),
        pytest.param({"op": "add", "path": "/list/3", "value": 1}, id="beyond the end"),
        pytest.param({"op": "add", "path": "/list/01", "value": 1}, id="leading zero"),
        pytest.param({"op": "add", "path": "/list/-1", "value": 1}, id="negative"),
        pytest.param({"op": "add", "path": "/text/a", "value": 1}, id="below a text"),
        pytest.param({"op": "add", "path": "/a"}, id="no value"),
        pytest.param({"op": "add", "path": "a", "value": 1}, id="no pointer"),
        pytest.param({"op": "test", "path": "/text", "value": "other"}, id="test fails"),
        pytest.param({"op": "test", "path": "/one", "value": True}, id="true is no one"),
        pytest.param({"op": "move", "from": "/map", "path": "/map/a"}, id="into itself"),
        pytest.param({"op": "merge", "path": "/a"}, id="unknown"),
        pytest.param({"path": "/a"}, id="no operation"),
        pytest.param("add", id="no object"),
    ],
)
def test_a_json_patch_that_can_not_be_applied_is_refused(operation: Any) -> None:
    target = {"list": [1, 2], "text": "t", "map": {}, "one": 1}
    before = copy.deepcopy(target)
    with pytest.raises(patching.PatchError):
        patching.apply_json_patch(target, [{"op": "add", "path": "/ok", "value": 1}, operation])
    assert target == before
