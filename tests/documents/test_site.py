"""The documentation site holds together: links and their anchors, and what its reference lists.

`make docs` builds it, with warnings as errors; here is what can be told without the build.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import simdev

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("**/*.md")), *sorted(ROOT.glob("*.md"))]
PUBLIC = re.compile(r"^\.\. public-names:: (\S+)\n((?:   :\w+:.*\n)*)", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of its headings: GitHub's, which are those of the site too."""
    slugs = set[str]()
    for heading in re.findall(r"^#+ +(.*?)\s*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        slugs.add(slug if slug not in slugs else f"{slug}-1")
    return slugs


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    for target in links(page):
        if target.startswith(("http:", "https:")):
            assert urlsplit(target).hostname, target
            continue
        name, _, anchor = target.partition("#")
        home = (page.parent / name).resolve() if name else page
        assert home.exists(), (page.name, target)
        if anchor and home.suffix == ".md":
            assert anchor in anchors(home), (page.name, target)


def test_every_page_is_reached_from_the_first() -> None:
    """By the tables of contents, which the build reads too: a page beside them is lost."""
    reached, queue = set[Path](), [DOCS / "index.md"]
    while queue:
        page = queue.pop()
        if page in reached:
            continue
        reached.add(page)
        for block in re.findall(
            r"^```\{toctree\}\n(.*?)^```", page.read_text("utf-8"), re.S | re.M
        ):
            for line in block.splitlines():
                if line and not line.startswith(":"):
                    queue += [path.resolve() for path in page.parent.glob(f"{line}.md")]
    assert set(DOCS.glob("**/*.md")) - reached == set()


def documented() -> dict[str, set[str]]:
    """By module the public names that the pages of the reference list."""
    names: dict[str, set[str]] = {}
    for page in (DOCS / "reference" / "python").glob("*.md"):
        for module, options in PUBLIC.findall(page.read_text("utf-8")):
            said = dict(re.findall(r":(\w+): (.*)", options))
            public = set(importlib.import_module(module).__all__)
            only = set(said.get("only", "").split()) or public
            left_out = set(said.get("except", "").split())
            assert only | left_out <= public, module
            names.setdefault(module, set()).update(only - left_out)
    return names


def test_every_public_name_is_in_the_reference_of_python() -> None:
    names = documented()
    by_name = {name for known in names.values() for name in known}
    assert set(simdev.__all__) - {"__version__"} <= by_name
    for module in names:
        missing = set(importlib.import_module(module).__all__) - by_name - {"__version__"}
        assert not missing, module


def test_every_verb_is_in_the_reference_of_the_command_line() -> None:
    """The directive itself, on the parsers: each verb has its usage and a row an option."""
    pytest.importorskip("sphinx")
    program = f"""
import sys
sys.path.insert(0, {str(DOCS / "_extensions")!r})
from command_line import head, parts, verbs_of
from simdev.commands import VERBS, parser
verbs = verbs_of(parser())
assert len(verbs) == len(VERBS)
for name, command in verbs.items():
    text = "\\n".join(part.astext() for part in parts(command))
    assert f"simdev {{name}}" in text, name
    for action in command._actions:
        if action.help and "-h" not in action.option_strings and "==" not in action.help:
            assert head(action) in text, (name, head(action))
"""
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True)
    assert not answer.returncode, answer.stderr.decode()
