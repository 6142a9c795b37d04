# SPDX-License-Identifier: Apache-2.0
"""Dashboards and alerts ask for metrics that there are, by labels that these have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.cli.reference import metrics_page
from tests.deploy.promql import parse, selectors

ROOT = Path(__file__).parents[2]
BOARDS = sorted((ROOT / "deploy" / "dashboards").glob("*.json"))
RULES = [
    rule
    for file in sorted((ROOT / "deploy" / "alerts").glob("*.yaml"))
    for group in yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["groups"]
    for rule in group["rules"]
]
TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
OTHERS = {"up": {"job", "instance"}}
"""What Prometheus itself makes."""


def board(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each expression with where it stands."""
    for path in BOARDS:
        for panel in board(path)["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']} {target['refId']}", target["expr"]
    for rule in RULES:
        yield rule["alert"], rule["expr"]


EXPRESSIONS = list(expressions())


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    return {name: set(labels) for name, labels in metrics_page.series_labels().items()} | OTHERS


@pytest.mark.parametrize(
    "text", [text for _, text in EXPRESSIONS], ids=[where for where, _ in EXPRESSIONS]
)
def test_an_expression_reads_series_that_there_are(text: str, known: dict[str, set[str]]) -> None:
    found = list(selectors(parse(text)))
    assert found
    for name, labels in found:
        assert name in known
        assert labels <= known[name]


def test_a_series_that_there_isnt_is_noticed(known: dict[str, set[str]]) -> None:
    ((name, labels),) = selectors(parse('sum(rate(gpuslice_binds_total{pod="x"}[5m]))'))
    assert (name, labels) == ("gpuslice_binds_total", {"pod"})
    assert name not in known


def test_both_sides_of_an_operator_are_read() -> None:
    text = "up == 0 and on (job) last_over_time(a[6h]) / -(b offset 5m)"
    assert [name for name, _ in selectors(parse(text))] == ["up", "a", "b"]


@pytest.mark.parametrize("path", BOARDS, ids=[path.stem for path in BOARDS])
def test_a_dashboard_can_be_imported_anywhere(path: Path) -> None:
    content = board(path)
    assert content["uid"] == f"gpuslice-{path.stem}"
    assert content["schemaVersion"] >= 39
    variables = {each["name"]: each for each in content["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    panels = [panel for panel in content["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert all("unit" in panel["fieldConfig"]["defaults"] for panel in panels)
    used = set(re.findall(r'"\$(\w+)"', " ".join(t["expr"] for p in panels for t in p["targets"])))
    assert used <= set(variables)


@pytest.mark.parametrize("path", BOARDS, ids=[path.stem for path in BOARDS])
def test_no_two_panels_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    ids = []
    for panel in board(path)["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        ids.append(panel["id"])
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("path", BOARDS, ids=[path.stem for path in BOARDS])
def test_a_dashboards_variables_are_labels_that_there_are(
    path: Path, known: dict[str, set[str]]
) -> None:
    for variable in board(path)["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
            assert found
            ((name, labels),) = selectors(parse(found[1]))
            assert {found[2], *labels} <= known[name]


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_says_what_is_wrong_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert {"summary", "description", "runbook_url"} == set(rule["annotations"])
    anchor = rule["annotations"]["runbook_url"].partition("/troubleshooting/#")[2]
    assert f'<a id="{anchor}"></a>\n### {rule["alert"]}\n' in TROUBLES


def test_every_alert_of_the_page_is_a_rule() -> None:
    assert set(re.findall(r"^### (Gpuslice\w+)$", TROUBLES, re.MULTILINE)) == {
        rule["alert"] for rule in RULES
    }


def test_bind_denials_that_are_alerted_on_are_reasons_that_there_are() -> None:
    arbiter = (ROOT / "webhook" / "arbiter.py").read_text(encoding="utf-8")
    assert 'reason="not-shown"' in arbiter
    server = (ROOT / "deviceplugin" / "server.py").read_text(encoding="utf-8")
    assert 'outcome("granted")' in server
