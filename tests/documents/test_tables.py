"""Tables of the documents name what the code knows, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import settings_tables
import simdev.cli
import simdev.serve
from simdev.cluster import QUEUES, TRANSFERS
from simdev.schedules.generate import BIDIRECTIONAL, FOLDED, SCHEDULES, SEARCHED
from simdev.search import FAMILIES, METHODS
from simdev.search.methods import Method
from simdev.search.prepare import PREPARATIONS, RULES
from simdev.strategy.strategy import POLICIES
from simdev.strategy.sync import PRESETS

ROOT = Path(__file__).parents[2]


def page_named(name: str) -> str:
    """The text of the page of that name, in whichever part of the documents it stands; those of
    docs/reference/python are of the API alone, those of docs/gallery of a picture.
    """
    pages = (ROOT / "docs").rglob(name)
    (page,) = (page for page in pages if page.parent.name not in ("python", "gallery"))
    return page.read_text(encoding="utf-8")


def tables(page: str) -> Iterator[tuple[str, list[list[str]]]]:
    """(head, rows) of each table of a page; cells are cut at bars that no backslash escapes."""
    for table in re.findall(r"(?:^\|.*\n)+", page_named(page), re.MULTILINE):
        head, _, *rows = table.splitlines()
        cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
        yield head.strip("| "), cells


def names(page: str, head: str) -> list[str]:
    """The names in the first column of the table whose head begins so."""
    (rows,) = [rows for title, rows in tables(page) if title.startswith(head)]
    return [name for first, *_ in rows for name in re.findall(r"`([^`]+)`", first)]


def codes() -> set[str]:
    """The codes of errors that the server's sources write: the second argument of a RequestError,
    and what is assigned to ``code``.
    """
    written = {"invalid"}
    for path in (ROOT / "simdev" / "serve").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "RequestError":
                texts: list[ast.AST] = [*node.args[1:]]
            elif isinstance(node, ast.Assign) and "code" in ast.unparse(node.targets[0]):
                texts = [node.value]
            else:
                continue
            constants = [text for value in texts for text in ast.walk(value)]
            written |= {
                text.value
                for text in constants
                if isinstance(text, ast.Constant) and re.fullmatch(r"[a-z_]+", str(text.value))
            }
    return written


@pytest.mark.parametrize(
    ("page", "head", "known"),
    [
        ("methods.md", "method | what it does", METHODS),
        ("learning.md", "family | what differs", FAMILIES),
        ("search.md", "name", [name.replace("adjust", "adjust:RULE") for name in PREPARATIONS]),
        ("serve.md", "method | params", simdev.serve.METHODS),
        ("serve.md", "code | meaning", codes()),
        ("sync.md", "policy | what it is", PRESETS),
        (
            "pipelines.md",
            "name | order of a rank",
            [*SCHEDULES, *SEARCHED, *BIDIRECTIONAL, *FOLDED],
        ),
    ],
)
def test_a_table_names_what_the_code_knows(page: str, head: str, known: Iterable[str]) -> None:
    written = names(page, head)
    assert sorted(written) == sorted(known)


@pytest.mark.parametrize(
    ("key", "known"), [("queues", QUEUES), ("transfer", TRANSFERS), ("order", POLICIES)]
)
def test_the_values_of_a_key_are_told_with_the_formats(key: str, known: Iterable[str]) -> None:
    text = page_named("formats.md")
    if key == "order":
        rows = [rows for title, rows in tables("formats.md") if title.startswith("`order`")]
        (text,) = [" ".join(first for first, *_ in table) for table in rows]
        assert set(re.findall(r'"(\w+)"', text)) >= set(known)
    else:
        (row,) = [row for _, rows in tables("formats.md") for row in rows if row[0] == f"`{key}`"]
        assert re.findall(r"`([\w-]+)`", row[1]) == list(known)


def test_the_rules_of_adjust_stand_in_its_row() -> None:
    (rows,) = [rows for head, rows in tables("search.md") if head.startswith("name")]
    (text,) = [row[1] for row in rows if row[0].startswith("`adjust")]
    assert sorted(set(re.findall(r"`([\w-]+)`", text)) - PREPARATIONS.keys()) == sorted(RULES)


@pytest.mark.parametrize(
    ("page", "verbs"),
    [
        ("search.md", ("search",)),
        ("comparing.md", ("search",)),
        ("learning.md", ("search", "train")),
        ("plan.md", ("plan",)),
        ("serve.md", ("serve",)),
    ],
)
def test_options_that_a_page_names_are_those_of_its_verbs(
    page: str, verbs: tuple[str, ...]
) -> None:
    """The reference has every option, from the parsers; a page names those that it is about."""
    rows = [row for verb in verbs for row in getattr(simdev.cli, verb).OPTIONS]
    options = {flag for flags, *_ in rows for flag in flags.split()}
    written = set(re.findall(r"`(--?[a-z][\w-]*)", page_named(page)))
    assert written
    assert written - options == set()


def test_the_table_of_learners_tells_what_the_code_says() -> None:
    (rows,) = [rows for head, rows in tables("methods.md") if head.startswith("learner | places")]
    learners = {name: method for name, method in METHODS.items() if method.learner}
    assert {first.strip("`") for first, *_ in rows} == set(learners)
    for name, places, carried, torch, _ in rows:
        method = learners[name.strip("`")]
        assert tuple(re.findall(r"`(\w+)`", places)) == method.prepare
        assert carried.startswith("it has none") != method.keeps
        assert carried.startswith("any graph") == (method.general is not None)
        assert torch == ("yes" if method.torch else "no")
        assert method.budget == 5000


def test_the_settings_of_every_learner_stand_in_its_page() -> None:
    page = settings_tables.DOCS.read_text(encoding="utf-8")
    begin = page.index(settings_tables.START)
    stands = page[begin : page.index(settings_tables.END) + len(settings_tables.END)]
    again = "python tests/settings_tables.py writes the tables again"
    assert stands == settings_tables.written(), again


def test_what_settings_mean_is_read_from_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base:
        """Sizes.

        - ``width``: of a layer
          (paper: 4).
        - ``rate``: of the base.
        """

    @dataclass
    class Some(Base):
        """Of learning:

        - ``rate``: of Adam; ``clip`` is apart. ``low``, ``high``: bounds of a | b.

        More: ``rate``: nothing.
        """

        width: int = 2
        rate: float = 0.5
        low: float = 0.0
        high: bool = True

        @classmethod
        def published(cls) -> Some:
            return cls(width=4)

    monkeypatch.setattr(Method, "settings", Some)
    assert settings_tables.table("post").splitlines()[2:] == [
        "| `width` | 2 | 4 | of a layer (paper: 4) |",
        "| `rate` | 0.5 | 0.5 | of Adam; `clip` is apart |",
        r"| `low` | 0.0 | 0.0 | bounds of a \| b |",
        r"| `high` | true | true | bounds of a \| b |",
    ]
    Some.__doc__ = None
    with pytest.raises(ValueError, match=r"^post: .* lacks low, high$"):
        settings_tables.table("post")


def test_the_readme_names_every_verb() -> None:
    readme = (ROOT / "README.md").read_text()
    verbs = {verb.__name__.rpartition(".")[2].rstrip("_") for verb in simdev.cli.VERBS}
    assert set(re.findall(r"^    simdev (\w+)", readme, re.MULTILINE)) == verbs
    assert f"# {len(METHODS)} placers and partitioners" in readme
