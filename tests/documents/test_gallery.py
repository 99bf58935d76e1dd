"""Every picture of the gallery has a page, a card, and a short script that saves it."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
MAKE = runpy.run_path(str(GALLERY / "make.py"))
NAMES = MAKE["names"]()
MOST = 16  # statements that are no imports, docstring included


def test_every_picture_has_a_page_and_a_card() -> None:
    pages = {path.stem for path in GALLERY.glob("*.md")} - {"index"}
    index = (GALLERY / "index.md").read_text()
    assert len(NAMES) == 20
    assert pages == set(NAMES)
    assert sorted(re.findall(r"^:link: (\w+)$", index, re.MULTILINE)) == NAMES
    assert sorted(re.findall(r"^:img-top: pictures/(\w+)\.png$", index, re.MULTILINE)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_a_short_script_that_saves_its_picture(name: str) -> None:
    page = (GALLERY / f"{name}.md").read_text()
    assert f"```{{image}} pictures/{name}.png\n" in page
    assert f"```{{literalinclude}} {name}.py\n" in page
    tree = ast.parse((GALLERY / f"{name}.py").read_text())
    assert ast.unparse(tree.body[-1]).endswith(f"figure.savefig('{name}.png')")
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    assert ast.get_docstring(tree)
    assert sum(not isinstance(node, ast.Import | ast.ImportFrom) for node in statements) <= MOST


def test_a_picture_is_stale_until_it_is_made_of_what_stands_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    globals_of_make = MAKE["stale"].__globals__
    monkeypatch.setitem(globals_of_make, "PICTURES", tmp_path / "pictures")
    assert MAKE["stale"]() == NAMES
    assert MAKE["make"]("nvl72") > 0
    assert (tmp_path / "pictures" / "nvl72.png").stat().st_size > 10_000
    assert set(NAMES) - set(MAKE["stale"]()) == {"nvl72"}
    monkeypatch.setitem(globals_of_make, "of_simdev", lambda: "changed since")
    assert MAKE["stale"]() == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_made(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(MAKE["make"].__globals__, "PICTURES", tmp_path)
    MAKE["make"](name)
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
