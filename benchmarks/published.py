"""How far simulated steps of large models are from published ones, by device, precision, kind and
software: ``python -m benchmarks.published [--update]`` prints what simdev tells beside its answers
and the tables of ``benchmarks.runs``; or simulates all steps first (some three minutes), and writes
the file that the one is told from and the page that has the others.

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
from typing import Any

from benchmarks import hybrid, really_run, runs
from benchmarks.ladder import update
from simdev import load_scenario, run
from simdev.ground.errors import InputError
from simdev.report import Report
from simdev.report.measures.published import COLUMNS, FILE, KEYS, keys_of, published_errors

PAGE = Path(__file__).resolve().parents[1] / "docs" / "papers" / "large-models.md"
DIGITS = 4  # of seconds
Published = tuple[str, float]
"""A source, and the seconds that it tells."""
Step = tuple[str, Sequence[Published], Callable[[], Report]]
"""A name, what was published, and what simulates the step."""
Asked = tuple[runs.Published, dict[str, Any]]


def steps() -> Iterator[Step]:
    """All published steps; one setting that several releases ran is one."""
    for ran in really_run.RUNS:
        if ran.seconds is not None:
            yield ran.name, [_of_name(ran)], partial(really_run.simulated, ran)
    for row in (*hybrid.A100, *hybrid.B200):
        if row.seconds is not None:
            yield row.name, [_of_name(row)], partial(hybrid.step, row)
    yield from _settings()


def _of_name(step: Any) -> Published:
    """The seconds of a step whose name begins with its source."""
    return step.name.partition(",")[0], step.seconds


def _settings() -> Iterator[Step]:
    """The settings of ``profiles/runs`` that simdev has a way to ask and ``really_run`` has not."""
    settings: dict[str, tuple[str, list[Published], Asked]] = {}
    known = {ran.seconds for ran in really_run.RUNS}
    for each in runs.published():
        if each.seconds in known:
            continue
        try:
            scenario = runs.scenario_of(each)
        except InputError:
            continue
        layout = each.layout.removesuffix(f", {each.row.get('release')}")
        setting = (f"{each.cell}, {layout}", list[Published](), (each, scenario))
        # The software may be known by the cell alone, so it is a part of the key.
        key = json.dumps([each.cell, scenario], default=str)
        source = f"NVIDIA {each.row['release']}" if "release" in each.row else each.row["table"]
        settings.setdefault(key, setting)[1].append((source, each.seconds))
    for name, published, asked in settings.values():
        yield name, published, partial(_simulated, *asked)


def _simulated(published: runs.Published, scenario: Any) -> Report:
    report = run(load_scenario(scenario))
    if report.feasible:
        return report
    # What fits in its place, as in the tables of the page.
    other = runs.answer(published).scenario
    return report if other in (None, scenario) else run(load_scenario(other))


def line(step: Step) -> list[Any]:
    """A line of the file: COLUMNS."""
    name, published, simulate = step
    report = simulate()
    assert report.training is not None
    large = report.training.large
    keys = keys_of(large.model, large.device)
    of_sources = [[source, round(seconds, DIGITS)] for source, seconds in published]
    model = large.model.name, large.model.parameters()
    return [name, *model, *(keys[key] for key in KEYS), of_sources, round(report.seconds, DIGITS)]


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
        for name, lines in runs.tables(answers).items():
            update(PAGE, lines, begin(name))


if __name__ == "__main__":
    main()
