# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from gpuslice.sim.apiserver import selectors

POD: dict[str, Any] = {
    "metadata": {
        "name": "p",
        "namespace": "team",
        "labels": {"app": "web", "tier": "", "a/b": "1"},
    },
    "spec": {"nodeName": "node-a"},
    "status": {"phase": "Running"},
}
EVENT = {
    "metadata": {"name": "e"},
    "involvedObject": {"kind": "Pod", "name": "p"},
    "source": {"component": "scheduler"},
}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("app=web", True),
        ("app==web", True),
        ("app = web", True),
        ("app!=web", False),
        ("none!=web", True),
        ("tier=", True),
        ("app", True),
        ("none", False),
        ("!none", True),
        ("! app", False),
        ("app in (web, db)", True),
        ("app in (db)", False),
        ("app notin (web)", False),
        ("none notin (web)", True),
        ("a/b=1,app", True),
        ("a/b=1,app=db", False),
        ("app in (web,db),tier", True),
        ("", True),
    ],
)
def test_a_label_selector_selects(text: str, *, selected: bool) -> None:
    assert selectors.parse_labels(text)(POD) is selected


@pytest.mark.parametrize("text", ["app in web", "=web", "app in (a", "a b"])
def test_a_label_selector_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(selectors.SelectorError):
        selectors.parse_labels(text)


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("spec.nodeName=node-a", True),
        ("spec.nodeName!=node-a", False),
        ("spec.nodeName=", False),
        ("metadata.name=p,metadata.namespace=team", True),
        ("status.phase!=Succeeded,status.phase!=Failed", True),
        ("status.podIP=", True),
    ],
)
def test_a_field_selector_selects_pods(text: str, *, selected: bool) -> None:
    assert selectors.parse_fields(text, ("", "pods"))(POD) is selected


def test_events_are_selected_by_what_they_are_about() -> None:
    text = "involvedObject.kind=Pod,involvedObject.name=p,source=scheduler"
    assert selectors.parse_fields(text, ("", "events"))(EVENT)
    assert not selectors.parse_fields("involvedObject.name=q", ("", "events"))(EVENT)


@pytest.mark.parametrize("text", ["spec.containers=a", "status.phase", "spec.nodeName"])
def test_a_field_that_is_not_selected_by_is_refused(text: str) -> None:
    with pytest.raises(selectors.SelectorError):
        selectors.parse_fields(text, ("", "pods"))


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        (None, True),
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db"]}]}, False),
        ({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["db"]}]}, True),
    ],
)
def test_a_selector_object_selects(selector: dict[str, Any] | None, *, selected: bool) -> None:
    assert selectors.from_object(selector)(POD["metadata"]["labels"]) is selected
