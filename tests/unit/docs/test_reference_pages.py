# SPDX-License-Identifier: Apache-2.0
"""The reference pages say what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from gpuslice.cli.reference import metrics_page, sbom, settings_page
from gpuslice.contract import names
from gpuslice.contract.annotations import Bounds, RequestError, read_request
from gpuslice.runtime.settings import Settings

DOCS = Path(__file__).parents[3] / "docs"
LOCK = DOCS.parent / "requirements" / "runtime.txt"
PAIR = re.compile(r'`([a-z./-]+): "([^"]*)"`')
ANNOTATIONS = (DOCS / "annotations.md").read_text(encoding="utf-8")


def rows() -> list[tuple[str, str]]:
    """Return the first two cells of each row that has an annotation."""
    found = []
    for line in ANNOTATIONS.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and PAIR.search(cells[0]):
            found.append((cells[0], cells[1]))
    return found


REFUSED_BELOW = ANNOTATIONS.index("### What is refused")
TAKEN = [row for row in rows() if ANNOTATIONS.index(f"| {row[0]} |") < REFUSED_BELOW]
REFUSED = [row for row in rows() if row not in TAKEN]


@pytest.mark.parametrize(("text", "share"), TAKEN, ids=[text for text, _ in TAKEN])
def test_an_example_means_the_share_beside_it(text: str, share: str) -> None:
    request = read_request(dict(PAIR.findall(text)), Bounds())
    assert request is not None
    assert f"`{request.share}`" == share


@pytest.mark.parametrize("text", [text for text, _ in REFUSED])
def test_what_is_listed_as_refused_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        read_request(dict(PAIR.findall(text)), Bounds())


def test_both_tables_of_examples_are_found() -> None:
    assert (len(TAKEN), len(REFUSED)) == (15, 12)


def test_every_key_and_variable_of_the_contract_is_on_the_page() -> None:
    wanted = {
        text
        for name, text in vars(names).items()
        if name.isupper()
        and isinstance(text, str)
        and (name.endswith(("_ANNOTATION", "_LABEL")) or name.startswith("ENV_"))
        and not name.startswith("MIRROR")
    } | {*names.USER_KEYS, names.PLACEMENT, names.MPS}
    assert {text for text in wanted if text not in ANNOTATIONS} == set()


def test_the_generated_pages_are_current() -> None:
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == settings_page.page()
    assert (DOCS / "metrics.md").read_text(encoding="utf-8") == metrics_page.page()
    bill = DOCS.parent / "deploy" / "sbom.json"
    assert bill.read_text(encoding="utf-8") == sbom.page(LOCK)


def test_the_bill_of_materials_has_each_locked_package_once_with_its_licence() -> None:
    content = json.loads(sbom.page(LOCK))
    locked = re.findall(r"^([a-z0-9-]+)==", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    assert [each["name"] for each in content["components"]] == locked
    for each in content["components"]:
        (licence,) = each["licenses"]
        assert licence.get("expression") or licence["license"]["name"] != "unknown"


def test_every_section_and_key_of_the_settings_is_on_the_page() -> None:
    page = settings_page.page()
    assert "## Top level" in page
    for field in msgspec.structs.fields(Settings):
        section = settings_page.section_in(field.type)
        if section is None:
            assert f"| `{field.encode_name}` |" in page
        else:
            assert f"## {field.encode_name}\n" in page
            for inner in msgspec.structs.fields(section):
                assert f"`{inner.encode_name}`" in page or f".{inner.encode_name}\n" in page


def test_a_fields_docstring_is_its_meaning() -> None:
    texts = settings_page.field_texts(Settings)
    assert texts["slice_memory_mib"] == "One slice with `sliceBy: memory`."


def test_a_histograms_series_are_known_by_prometheus_names() -> None:
    known = metrics_page.series_labels()
    assert known["gpuslice_admission_duration_seconds_bucket"] == ("endpoint", "le")
    assert known["gpuslice_bind_decisions_total"] == ("outcome", "reason")
    assert known["gpuslice_slices_capacity"] == ("node", "gpu_uuid")
    assert "gpuslice_admission_duration_seconds" not in known
