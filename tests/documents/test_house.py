"""The documents of the house keep their shape: a short map, a page a decision, a line an entry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
SECTIONS = ("Context", "Decision", "Figures", "What was tried")


def headings(page: Path) -> list[str]:
    return re.findall(r"^## (.+)$", page.read_text("utf-8"), re.MULTILINE)


def test_the_architecture_is_short_and_has_ten_rules() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    assert len(text.split()) <= 1500
    assert re.findall(r"^(\d+)\. \*\*", text.partition("## The ten rules")[2], re.MULTILINE) == [
        str(n) for n in range(1, 11)
    ]


def test_the_picture_of_the_architecture_has_every_floor() -> None:
    picture = re.findall(r"```text\n(.*?)```", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL)[0]
    folders = {path.parent.name for path in (ROOT / "simdev").glob("*/__init__.py")}
    assert folders <= set(re.findall(r"\w+", picture))


def test_decisions_are_numbered_and_in_the_index() -> None:
    assert [int(page.stem[:3]) for page in DECISIONS] == [*range(1, len(DECISIONS) + 1)]
    written = re.findall(r"\((\d\S+)\.md\)", (DECISIONS[0].parent / "index.md").read_text("utf-8"))
    assert written == [page.stem for page in DECISIONS]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_is_a_page(page: Path) -> None:
    assert headings(page) == [name for name in SECTIONS if name in headings(page)]
    assert {"Context", "Decision"} <= set(headings(page))
    assert len(page.read_text("utf-8").split()) <= 450


def test_an_entry_of_the_changelog_is_a_line_of_its_group() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    entries = [line for line in lines if line.startswith("- ")]
    assert max(map(len, entries)) <= 200
    release = r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)"
    shape = re.compile(rf"- .+|### (Added|Changed|Fixed)|## (Unreleased|{release})")
    for line in filter(None, lines[lines.index("## Unreleased") :]):
        assert shape.fullmatch(line), line
