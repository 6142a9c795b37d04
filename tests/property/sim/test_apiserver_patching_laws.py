# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.sim.apiserver import patching

KEYS = st.text("ab/~ ", max_size=3)
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.text("xy", max_size=2)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return value


@given(OBJECTS, OBJECTS)
def test_the_patch_between_two_objects_leads_from_one_to_the_other(
    left: dict[str, Any], right: dict[str, Any]
) -> None:
    """The oracle is jsonpatch: its patches use add, remove, replace and move, with escapes."""
    before = copy.deepcopy(left)
    operations = jsonpatch.make_patch(left, right).patch
    assert patching.apply_json_patch(left, operations) == right
    assert left == before


@given(OBJECTS, OBJECTS)
def test_merging_twice_is_merging_once(target: dict[str, Any], patch: dict[str, Any]) -> None:
    once = patching.merge(target, patch)
    assert patching.merge(once, patch) == once


@given(OBJECTS, OBJECTS)
def test_merging_into_nothing_gives_the_patch_without_nulls(
    target: dict[str, Any], patch: dict[str, Any]
) -> None:
    assert patching.merge({}, patch) == without_nulls(patch)
    assert patching.merge(target, {}) == target


@given(OBJECTS)
def test_an_object_that_is_merged_into_itself_stays(target: dict[str, Any]) -> None:
    plain = without_nulls(target)
    assert patching.merge(plain, plain) == plain
    assert patching.merge_strategically(plain, plain) == plain
