"""The table of methods, and the one in docs/reference/methods.md that says what they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simdev.search import METHODS, PREPARATIONS
from simdev.search.methods import BAECHI

DOCS = Path(__file__).parents[2] / "docs"
METHODS_PAGE = (DOCS / "reference" / "methods.md").read_text(encoding="utf-8")


def rows() -> dict[str, list[str]]:
    """The cells of the page's first table, by each name of its first column."""
    table = METHODS_PAGE.partition("\n|")[2]
    lines = [line for line in table.partition("\n\n")[0].splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {name: row for row in cells for name in re.findall("`([^`]+)`", row[0])}


def test_the_docs_have_every_method_in_the_order_of_the_table():
    assert list(rows()) == list(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_the_docs_have_the_defaults_of_a_method(name):
    """Its preparations, and its evaluations where they are what ends it."""
    method, default = METHODS[name], rows()[name][-1]
    named = re.findall("`([^`]+)`", default)
    assert named == ([",".join(method.prepare)] if method.prepare else [])
    evaluations = re.search(r"([\d,]+) evaluations", default)
    if evaluations:
        assert int(evaluations[1].replace(",", "")) == method.budget


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_a_function_with_docs(name):
    assert METHODS[name].run.__doc__
    assert not (METHODS[name].splits and METHODS[name].prepare)
    assert set(METHODS[name].prepare) <= PREPARATIONS.keys()
    assert set(BAECHI) <= PREPARATIONS.keys()
