"""Pages of systems name commands and scenarios that are there, and tell what these print."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from simdev.cli import main
from simdev.files.examples import scenario_names

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "papers" / "index.md"
PAGES = sorted(page for page in INDEX.parent.glob("*.md") if page != INDEX)
PRINTED = re.compile(r"^    (simdev .*)\n\n```text\n(.*?)```", re.MULTILINE | re.DOTALL)
RUN = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """The words of each command line of a page, in a block of its own or within a sentence."""
    text = page.read_text().replace("\\\n", " ")
    lines = re.findall(r"^    ((?:simdev|python) .*)$", text, re.MULTILINE)
    inner = re.findall(r"`((?:simdev|python) \S+ [^`]+)`", text)
    return [shlex.split(line) for line in [*lines, *inner]]


def test_the_index_has_every_page() -> None:
    assert {target for target in re.findall(r"\]\((\w[\w-]*\.md)\)", INDEX.read_text())} == {
        page.name for page in PAGES
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_commands_that_are_there(page: Path) -> None:
    assert commands(page)
    for program, verb, subject, *_ in commands(page):
        if program == "python":
            assert verb == "-m"
            assert ROOT.joinpath(*subject.split(".")).with_suffix(".py").is_file()
        elif verb in ("simulate", "search", "sweep", "report"):
            assert subject == "scenario.json" or subject in scenario_names()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_tells_what_is_printed(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of what a block of Python prints, these lines of what a command prints."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text().replace("\\\n", " ")
    for source, printed in RUN.findall(text):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(source, page.name, "exec"), {})
        assert out.getvalue() == printed
    for command, printed in PRINTED.findall(text):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main(shlex.split(command)[1:]) == 0
        assert set(printed.splitlines()) <= set(out.getvalue().splitlines())
