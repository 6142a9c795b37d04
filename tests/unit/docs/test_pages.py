# SPDX-License-Identifier: Apache-2.0
"""The pages name what is there: messages, files, links, commands, settings."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from gpuslice.cli.kubectl import COMMANDS
from gpuslice.cli.main import _SUBCOMMANDS
from gpuslice.cli.reference import settings_page
from gpuslice.runtime.settings import Settings
from tests.unit.docs.literals import stands_in_code

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TROUBLES = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^### `(.+)`$", TROUBLES, re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]+))?\)")


def ids(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(DOCS)) for page in pages]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: explicit ones, and those of its headings."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\s-]", "", each).strip().lower().replace(" ", "-") for each in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"></a>', text))


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_troubleshooting_page_stands_in_the_code(message: str) -> None:
    assert stands_in_code(message)


def test_a_message_that_the_code_hasnt_is_noticed() -> None:
    assert len(MESSAGES) > 20
    assert not stands_in_code("no single GPU on node <node> has time for a share of <share>")


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        there = page.parent / target if target else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_files_that_are_named_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"(?<![\w/.])(?:deploy|docs|tests|gpuslice)/[\w./-]+\w", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_commands_that_are_named_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for command in re.findall(r"kubectl gpuslice ([a-z-]+)", text):
        assert command in COMMANDS
    for command in re.findall(r"(?:^ {4}|`)gpuslice ([a-z-]+)", text, re.MULTILINE):
        assert command in _SUBCOMMANDS


def keys() -> set[str]:
    """Return the keys of all settings, the sections' with and without their section."""
    page = settings_page.page()
    known = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    for field in msgspec.structs.fields(Settings):
        section = settings_page.section_in(field.type)
        if section is not None:
            known |= {
                f"{field.encode_name}.{each.encode_name}"
                for each in msgspec.structs.fields(section)
            }
    return known


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_settings_that_are_named_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"[Ss]ettings? `([A-Za-z.]+)", text)
    assert set(named) - keys() == set()


def test_the_quickstart_is_under_five_commands_on_files_that_are_there() -> None:
    text = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    block = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)[0]
    commands = block.strip().splitlines()
    assert len(commands) < 5
    assert all(each.startswith("kubectl ") for each in commands)


def test_the_sites_navigation_leads_to_pages_and_leaves_out_none_for_users() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def pages(item: object) -> set[str]:
        if isinstance(item, str):
            return {item}
        inner = item.values() if isinstance(item, dict) else item
        assert not isinstance(inner, str)
        return set().union(*map(pages, inner))  # type: ignore[call-overload] # nested lists

    there = set(ids(PAGES))
    assert pages(site["nav"]) <= there
    # A page for developers may stay out; what the home page leads to may not.
    linked = {target for target, _ in LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))}
    assert linked <= pages(site["nav"])


def test_a_fix_of_the_doctor_names_a_page_that_is_there() -> None:
    doctor = ROOT / "gpuslice" / "cli" / "doctor"
    for file in doctor.glob("*.py"):
        text = file.read_text(encoding="utf-8")
        for path in re.findall(r"\b(?:deploy|docs)/[\w./-]+\w", text):
            assert (ROOT / path).exists(), path
