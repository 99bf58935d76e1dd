"""How far simulated steps of large models are from published ones, by device, precision, kind and
software: ``python -m benchmarks.published [--update]`` prints what simdev tells beside its answers
and the tables of ``benchmarks.runs``; or simulates all steps first (some three minutes), and writes
the file that the one is told from and the page that has the others and the table of
``benchmarks.really_run``.

The steps are those of ``benchmarks.really_run``, which has the sources of each, of
``benchmarks.hybrid`` (Korthikanti et al. 2022 on A100; SimuMax's release table v1.2 on B200, by the
preset) and of ``benchmarks.runs`` (``profiles/runs``). Published figures are facts and bear no
licence.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import hybrid, really_run, runs
from benchmarks.ladder import update
from simdev import load_scenario
from simdev.ground.errors import InputError
from simdev.nouns.models.large import Transformer
from simdev.report import Report
from simdev.report.measures.published import (
    COLUMNS,
    FILE,
    KEYS,
    keys_of,
    kinds_of,
    published_errors,
)

PAGE = Path(__file__).resolve().parents[1] / "docs" / "papers" / "large-models.md"
DIGITS = 4  # of seconds
Published = tuple[str, float]
"""A source, and the seconds that it tells."""


class Simulated(NamedTuple):
    """The model of a simulated step, the kinds of its devices, and its seconds."""

    model: Transformer
    device: str
    seconds: float


Step = tuple[str, Sequence[Published], Callable[[], Simulated]]
"""A name, what was published, and what simulates the step."""


def steps() -> Iterator[Step]:
    """All published steps; one setting that several releases ran is one. What ``profiles/runs`` has
    too is asked with its recipe.
    """
    known = {each.seconds for each in runs.published()}
    for ran in really_run.RUNS:
        if ran.seconds is not None and ran.seconds not in known:
            yield ran.name, [_of_name(ran)], partial(_of_report, really_run.simulated, ran)
    for row in (*hybrid.A100, *hybrid.B200):
        if row.seconds is not None:
            yield row.name, [_of_name(row)], partial(_of_report, hybrid.step, row)
    yield from _settings()


def _of_name(step: Any) -> Published:
    """The seconds of a step whose name begins with its source."""
    return step.name.partition(",")[0], step.seconds


def _settings() -> Iterator[Step]:
    """The settings of ``profiles/runs`` that simdev has a way to ask."""
    settings: dict[str, tuple[str, list[Published], runs.Published]] = {}
    for each in runs.published():
        try:
            scenario = runs.scenario_of(each)
        except InputError:
            continue
        layout = each.layout.removesuffix(f", {each.row.get('release')}")
        setting = (f"{each.cell}, {layout}", list[Published](), each)
        # The software may be known by the cell alone, so it is a part of the key.
        key = json.dumps([each.cell, scenario], default=str)
        source = f"NVIDIA {each.row['release']}" if "release" in each.row else each.row["table"]
        settings.setdefault(key, setting)[1].append((source, each.seconds))
    for name, published, each in settings.values():
        yield name, published, partial(_of_row, each)


def _of_report(simulate: Callable[[Any], Report], step: Any) -> Simulated:
    report = simulate(step)
    assert report.training is not None
    large = report.training.large
    return Simulated(large.model, large.device, report.seconds)


def _of_row(published: runs.Published) -> Simulated:
    """A row of ``profiles/runs``, or what fits in its place, as in the tables of the page."""
    answer = runs.answer(published)
    assert answer.seconds is not None
    assert answer.scenario is not None
    scenario = load_scenario(answer.scenario)
    assert isinstance(scenario.graph, Transformer)
    return Simulated(scenario.graph, kinds_of(scenario.cluster), answer.seconds)


def line(step: Step) -> list[Any]:
    """A line of the file: COLUMNS."""
    name, published, simulate = step
    model, device, seconds = simulate()
    keys = keys_of(model, device)
    of_sources = [[source, round(each, DIGITS)] for source, each in published]
    of_model = model.name, model.parameters(), *(keys[key] for key in KEYS)
    return [name, *of_model, of_sources, round(seconds, DIGITS)]


def document() -> dict[str, Any]:
    """The file, of what is simulated."""
    source = (
        "python -m benchmarks.published --update; sources: benchmarks/really_run.py, hybrid.py, "
        "profiles/runs/README.md"
    )
    columns = list(COLUMNS)
    return {"version": 2, "source": source, "columns": columns, "steps": [*map(line, steps())]}


def text(value: dict[str, Any]) -> str:
    """The file's text, a step a line."""
    lines = ",\n  ".join(json.dumps(each) for each in value["steps"])
    head = json.dumps({name: part for name, part in value.items() if name != "steps"})[:-1]
    return f'{head}, "steps": [\n  {lines}\n]}}\n'


def begin(name: str) -> str:
    """The mark in the page before a table."""
    return f"<!-- python -m benchmarks.published --update: {name} -->\n\n"


def with_line(page: str, cells: Sequence[str]) -> str:
    """The page with a line of ``really_run`` in the place of that of the same run and plan."""
    line, start = f"| {' | '.join(cells)} |", f"| {' | '.join(cells[:2])} |"
    return "\n".join(line if old.startswith(start) else old for old in page.split("\n"))


def write_page(answers: Sequence[runs.Answer]) -> None:
    """Write the tables of ``benchmarks.runs`` and the lines of ``really_run`` into the page."""
    for name, lines in runs.tables(answers).items():
        update(PAGE, lines, begin(name))
    page = PAGE.read_text(encoding="utf-8")
    for ran in really_run.chosen([]):
        page = with_line(page, really_run.cells(ran, really_run.simulated(ran)))
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    """Print the tables, or write them and the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the file and the page")
    writes = parser.parse_args().update
    if writes:
        FILE.write_text(text(document()), encoding="utf-8")
    print(*published_errors(), sep="\n")
    answers = [runs.answer(each) for each in runs.published()]
    runs.print_tables(answers)
    if writes:
        write_page(answers)


if __name__ == "__main__":
    main()
