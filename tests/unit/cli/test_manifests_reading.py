# SPDX-License-Identifier: Apache-2.0
"""What `gpuslice.cli.manifests` takes and refuses."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from gpuslice.cli.manifests import ManifestError, read_manifests

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: team}\n"
EMPTY = io.StringIO()


def test_a_file_gives_its_documents_in_order(tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text(f"{POD}---\n---\n{POD.replace('name: a', 'name: b')}")
    found = read_manifests(str(file), EMPTY)
    assert [(each.kind, each.name, each.namespace) for each in found] == [
        ("Pod", "a", "team"),
        ("Pod", "b", "team"),
    ]


def test_a_folder_gives_its_manifests_by_file_name_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "2.json").write_text('{"apiVersion":"v1","kind":"Pod","metadata":{"name":"two"}}')
    (tmp_path / "1.yaml").write_text(POD)
    (tmp_path / "README.md").write_text("# no manifest")
    assert [each.name for each in read_manifests(str(tmp_path), EMPTY)] == ["a", "two"]


def test_a_dash_reads_standard_input_and_a_list_is_unfolded() -> None:
    item = '{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"job-"}}'
    text = f'{{"apiVersion":"v1","kind":"List","items":[{item}]}}'
    assert [each.name for each in read_manifests("-", io.StringIO(text))] == ["job-*"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", "there is no object in it", id="empty"),
        pytest.param("a: [", "is no YAML", id="no yaml"),
        pytest.param("- 1", "document 1 of -: is no object, but list", id="a list"),
        pytest.param("kind: Pod", "has no apiVersion; e.g. apiVersion: v1", id="no version"),
        pytest.param(
            "apiVersion: v1\nkind: Pod\nmetadata: {}", "the Pod has no metadata.name", id="no name"
        ),
    ],
)
def test_what_is_no_manifest_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ManifestError) as refused:
        read_manifests("-", io.StringIO(text))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"absent\.yaml: No such file or directory"):
        read_manifests(str(tmp_path / "absent.yaml"), EMPTY)
