"""Tables of the documents name what the code knows, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typing_extensions import is_typeddict

import simdev.commands
import simdev.commands.server
from simdev.commands.server.errors import CODES
from simdev.files import device_presets, preset_names
from simdev.learn import FAMILIES
from simdev.nouns.cluster import QUEUES, TRANSFERS
from simdev.nouns.schedules import NAMES
from simdev.nouns.semantics import SHIPPED
from simdev.nouns.strategy import POLICIES
from simdev.search import METHODS
from simdev.search.prepare import PREPARATIONS, RULES

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
    for path in (ROOT / "simdev" / "commands" / "server").glob("*.py"):
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
        ("formats.md", "`queues` |", QUEUES),
        ("formats.md", "`transfer` |", TRANSFERS),
        ("learning.md", "family | what differs", FAMILIES),
        ("search.md", "name", [name.replace("adjust", "adjust:RULE") for name in PREPARATIONS]),
        ("serve.md", "method | params", simdev.commands.server.METHODS),
        ("pipelines.md", "name | order of a rank", NAMES),
    ],
)
def test_a_table_names_what_the_code_knows(page: str, head: str, known: Iterable[str]) -> None:
    written = names(page, head)
    assert sorted(written) == sorted(known)


def test_every_code_of_the_server_is_explained() -> None:
    assert set(CODES) == codes()


def test_the_orders_of_queues_are_told_with_the_formats() -> None:
    (rows,) = [rows for title, rows in tables("formats.md") if title.startswith("`order`")]
    assert set(re.findall(r'"(\w+)"', " ".join(first for first, *_ in rows))) >= set(POLICIES)


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
    rows = [row for verb in verbs for row in getattr(simdev.commands, verb).OPTIONS]
    options = {flag for flags, *_ in rows for flag in flags.split()}
    written = set(re.findall(r"`(--?[a-z][\w-]*)", page_named(page)))
    assert written
    assert written - options == set()


@pytest.fixture(scope="module")
def registries() -> Iterator[ModuleType]:
    """What the tables that the site's builder writes are made of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
        yield import_module("registries")


def first(tables: Iterable[Any]) -> list[str]:
    """The names in the first columns of tables."""
    return [
        name for table in tables for row in table.rows for name in re.findall("``(.+?)``", row[0])
    ]


def test_tables_of_the_site_tell_all_that_the_code_knows(registries: ModuleType) -> None:
    """Each row has all of its cells, so each kind and method and setting is explained."""
    assert set(first(registries.op_kinds())) >= set(SHIPPED)
    assert first(registries.methods()) == list(METHODS)
    assert first(registries.learners()) == [name for name in METHODS if METHODS[name].learner]
    assert first(registries.presets()) == list(preset_names())
    assert first(registries.device_kinds()) == [spec.kind for spec in device_presets()]
    for name in ("op-kinds", "methods", "learners", "settings", "presets", "device-kinds"):
        for table in registries.TABLES[name]():
            assert {len(row) for row in table.rows} == {len(table.head)}
            assert all(row[0] and row[1] and row[-1] for row in table.rows), table.title


def test_every_registry_table_has_a_page(registries: ModuleType) -> None:
    pages = [page.read_text("utf-8") for page in (ROOT / "docs" / "reference").glob("*.md")]
    written = re.findall(r"^\.\. registry-table:: (.+)", "\n".join(pages), re.MULTILINE)
    assert sorted(written) == sorted(registries.TABLES)


@pytest.mark.parametrize("module", ["scenario", "graph", "cluster", "strategy", "collectives"])
def test_every_key_of_a_file_means_something(registries: ModuleType, module: str) -> None:
    """The docstring of its shape tells it, but for keys that a noun or another page explains."""
    nouns = {"SyncShape", "_MemoryShape", "FailuresShape", "DisturbancesShape", "PausesShape"}
    elsewhere = {"PipelineShape", "EveryLinkShape", *nouns}
    shapes = [
        shape
        for name, shape in vars(import_module(f"simdev.files.{module}")).items()
        if is_typeddict(shape) and name not in elsewhere and name != "TypedDict"
    ]
    assert shapes
    said_of = import_module("bullets").said_of  # beside registries, while that can be imported
    for shape in shapes:
        texts = said_of(shape)
        assert set(shape.__annotations__) == {name for name in texts if texts[name]}, shape.__name__


def test_every_key_that_a_noun_explains_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    formats = import_module("file_formats")
    names = ("FailuresShape", "DisturbancesShape", "PausesShape")
    modules = dict.fromkeys(names, "disturbances")
    modules |= {"SyncShape": "strategy", "_MemoryShape": "scenario"}
    assert formats.NOUNS.keys() == modules.keys()
    for name, noun in formats.NOUNS.items():
        shape = getattr(import_module(f"simdev.files.{modules[name]}"), name)
        assert shape.__annotations__.keys() == formats.said_of(noun).keys()


def test_the_keys_that_must_stand_are_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    formats = import_module("file_formats")
    shape = import_module("simdev.files.scenario")._ScenarioShape
    written = dict(formats.tables(shape))
    shapes = ["scenario", "options", "disturbances", "failures", "memory", "pauses"]
    assert list(written) == shapes
    rows = {key.strip("`"): value for key, _, value in written["scenario"]}
    assert list(rows)[:3] == [key for key in rows if rows[key].endswith("required")]
    assert rows["graph"] == "required"
    assert rows["options"] == "an object: options"


def test_the_table_of_learners_says_what_policies_can_do(registries: ModuleType) -> None:
    (table,) = registries.learners()
    rows = {name.strip("`"): row for name, *row in table.rows}
    assert rows["brkga"] == ["groups of ``pair``", "it keeps none", "no"]
    assert rows["gdp"] == ["single ops", "any graph on as many devices", "yes"]
    assert rows["post"] == ["groups of ``pair``", "the graph that it was learned on", "no"]


def test_what_settings_mean_is_read_from_docstrings(registries: ModuleType) -> None:
    class Base:
        """Sizes.

        - ``width``: of a layer
          (paper: 4).
        - ``rate``: of the base.
        """

    @dataclass
    class Some(Base):
        """Of learning:

        - ``rate``: of Adam; ``clip``: apart. ``low``, ``high``: bounds of a | b.

        More: ``rate``: nothing.
        """

        width: int = 2
        rate: float = 0.5
        low: float = 0.0
        high: bool = True

        @classmethod
        def published(cls) -> Some:
            return cls(width=4)

    assert list(registries.settings_of(Some)) == [
        ("``width``", "of a layer (paper: 4)", "2", "4"),
        ("``rate``", "of Adam; ``clip``: apart", "0.5", "0.5"),
        ("``low``", "bounds of a | b", "0.0", "0.0"),
        ("``high``", "bounds of a | b", "true", "true"),
    ]
    Some.__doc__ = None
    with pytest.raises(ValueError, match=r"Some: .* differ: high, low$"):
        list(registries.settings_of(Some))


def test_the_readme_names_every_verb() -> None:
    readme = (ROOT / "README.md").read_text()
    verbs = {verb.__name__.rpartition(".")[2].rstrip("_") for verb in simdev.commands.VERBS}
    assert set(re.findall(r"^    simdev (\w+)", readme, re.MULTILINE)) == verbs
    assert f"# {len(METHODS)} placers and partitioners" in readme
