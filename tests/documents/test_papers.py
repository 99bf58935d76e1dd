"""Pages of systems name commands and scenarios that are there, and tell what these print."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from simdev import Oracle, load_scenario
from simdev.commands import main
from simdev.files.examples import scenario_names, scenario_path
from simdev.learn import family
from simdev.oracle import oracle_of
from simdev.search import baechi, search
from worlds.scenarios import scenario_of

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


def rows(page: str) -> Iterator[list[str]]:
    """The cells of all rows of the tables of a page, without marks of code."""
    for row in re.findall(r"^\|(.*)\|$", (INDEX.parent / page).read_text(), re.MULTILINE):
        yield [cell.strip().replace("`", "") for cell in row.split("|")]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_index_and_pages_of_learners_tell_the_same() -> None:
    """Which learners end below m-SCT in parallel queues, by the table and in the sentence."""
    table = {
        row[0].split()[0]: [number for cell in row[1:3] for number in numbers(cell)]
        for row in rows("index.md")
        if len(row) == 5 and numbers(" ".join(row))
    }
    (spotlight,) = [row[2] for row in rows("spotlight.md") if "policy gradient" in row[0]]
    here, colocrl = (numbers(part) for part in spotlight.split(";"))
    assert table["spotlight"] == [round(median(here), 1)]
    limit = table["m-sct"][0]
    assert median(colocrl) > limit > max(here)
    learners = {"brkga", "colocrl", "hdp", "post", "gdp", "spotlight"}
    below = {name for name in learners if min(table[name]) < limit}
    (sentence,) = re.findall(r"In parallel queues (.*?) end below", INDEX.read_text(), re.DOTALL)
    assert {name.lower() for name in re.findall(r"\w+", sentence)} - {"and"} == below


def test_why_m_sct_loses_in_sequential_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of Baechi's page: its clock books the queues and is behind one device."""
    text = (INDEX.parent / "baechi.md").read_text()
    planned: list[tuple[Any, int]] = []
    plan = baechi.earliest_first

    def watched(instance: Any, *arguments: Any) -> Any:
        answer = plan(instance, *arguments)
        planned.append((instance, answer[1]))
        return answer

    monkeypatch.setattr(baechi, "earliest_first", watched)
    graph = {"model": "gnmt", "batch": 128, "length": 40, "vocabulary": 30000}
    scenario = scenario_of(graph, "4x-rtx-2080", {"placement": {"*": "gpu:0"}})
    clocks = {}
    for queues, names in (("half-duplex", ("m-sct", "expert", "single")), ("parallel", ("m-sct",))):
        oracle = Oracle(scenario.graph, replace(scenario.cluster, queues=queues), scenario.costs)
        steps = [search(oracle, name).cost.seconds * 1e3 for name in names]
        clocks[queues] = planned[0][1] / 1e9
        if queues == "half-duplex":
            row = "GNMT {:.0f} against {:.0f}, one device {:.0f}"
            assert row.format(*steps) in text
            instance = planned[0][0]
        planned.clear()
    alone = instance.duration.min(axis=1).sum() / 1e9
    words = " ".join(text.split())
    clock = "its forward takes {:.1f} ms, one device's {:.1f} (in parallel queues {:.1f})"
    assert clock.format(clocks["half-duplex"], alone, clocks["parallel"]) in words
    ends = instance.mean[np.array(instance.edges)].max(axis=1)
    assert f"{np.mean(instance.edge_ps > ends):.0%} of".replace("%", " %") in words


def test_the_search_of_the_readme_helps() -> None:
    """It ends below the placement that its scenario gives, and below one device."""
    readme = (ROOT / "README.md").read_text()
    (line,) = re.findall(r"^    simdev search (\S+ --method \S+)", readme, re.MULTILINE)
    name, _, method = line.split()
    scenario = load_scenario(scenario_path(name))
    answer = search(scenario, method)
    given, single = oracle_of(scenario)(scenario.strategy), search(scenario, "single").cost
    assert answer.cost.feasible
    assert answer.cost.step_ps < min(given.step_ps, single.step_ps)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "nmt", "ptb"])
def test_rules_beside_placetos_policy(name: str) -> None:
    """Medians over the graphs held out, as its page has them."""
    (row,) = [row for row in rows("placeto.md") if row[0] == name and len(row) == 6]
    held_out = family(name).held_out
    for method, wanted in zip(("single", "expert", "m-sct", "m-etf"), row[1:5], strict=True):
        steps = [search(graph, method).cost.seconds * 1e3 for graph in held_out]
        assert f"{median(steps):.1f}" == wanted
