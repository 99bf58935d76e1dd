"""``simdev simulate FILE``: the step time of a scenario, and whether it fits."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import DeadlockError, InputError
from . import training
from .codes import DONE, FAILED_CHECK, INFEASIBLE
from .outputs import places_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..analysis import Report
    from ..scenario import Scenario
    from ..trace import Trace

PICTURES = (".png", ".svg", ".pdf")


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "simulate",
        help="simulate a scenario: step time, utilization, memory, critical path",
        description="Simulate one training step. Exits 1 where the step does not fit into memory.",
        allow_abbrev=False,
    )
    found.add_argument("file", nargs="?", metavar="FILE", help="the scenario (JSON, may be gzipped; - is stdin)")
    found.add_argument("--engine", choices=("auto", "simpy", "compiled"), help="default: what the scenario says")
    found.add_argument("--gantt", metavar="OUT", help="draw the timeline (.png, .svg or .pdf)")
    found.add_argument("--trace", metavar="OUT", help="write a trace for Perfetto (.json or .json.gz)")
    found.add_argument("--save", metavar="OUT", help="save the run, for simdev check (.json or .json.gz)")
    found.add_argument("--json", action="store_true", help="print the report as JSON")
    found.add_argument("--check", action="store_true", help="judge the result by the independent checker too")
    found.add_argument("--strict", action="store_true", help="refuse op times that are estimates and name the ops")
    training.add_arguments(found)
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    source = _stdin() if args.file == "-" else args.file
    if training.is_meant(args, source):
        return training.run(args, source)
    with outputs(args) as places:
        from ..analysis import analyze
        from ..scenario import execute

        progress = _Progress(5)
        scenario = _scenario(args, source)
        progress.next("simulate")
        try:
            outcome = execute(scenario)
        except (DeadlockError, InputError) as error:
            raise error.within(shown_name(args.file)) from None
        progress.next("analyze")
        known = outcome.rungs, outcome.misses, outcome.rel_err
        report = analyze(outcome.trace, *known, scenario.memory, outcome.splits, outcome.steady)
        code = DONE if report.feasible else INFEASIBLE
        if args.check:
            progress.next("check")
            code = FAILED_CHECK if is_faulty(report.trace) else code
        progress.next("write")
        write(report.trace, places, lambda: _figure(report))
        progress.close()
    print(json.dumps(report.to_json(), indent=1, allow_nan=False) if args.json else report)
    return code


def _stdin() -> dict[str, Any]:
    """The scenario on stdin: it can be read but once, and what it holds tells who runs it."""
    from ..files.paths import shown
    from ..files.reading import label, read_json

    value = read_json("-")
    if not isinstance(value, dict):
        raise InputError(f"must be an object (a scenario), got {shown(value)}", label("-"))
    return value


def shown_name(file: str) -> str:
    """How messages name a file."""
    return "<stdin>" if file == "-" else file


def _scenario(args: argparse.Namespace, source: Any) -> Scenario:
    from dataclasses import replace

    from ..scenario import load_scenario

    try:
        scenario = load_scenario(source)
    except InputError as error:
        raise error.within("<stdin>") if args.file == "-" else error from None
    if args.strict:
        scenario = replace(scenario, costs=replace(scenario.costs, strict=True))
    return scenario if args.engine is None else replace(scenario, engine=args.engine)


@contextmanager
def outputs(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Option -> the temporary file to fill, which takes its place at the end. Raises InputError before any work."""
    wanted = {name: getattr(args, name) for name in ("gantt", "trace", "save") if getattr(args, name) is not None}
    _check_names(wanted, args.file or "", [one for one in (args.cluster, args.csv) if one and os.path.isfile(one)])
    with places_for(wanted) as places:
        yield places


def _check_names(wanted: dict[str, str], source: str, inputs: list[str]) -> None:
    problems, taken = [], {place_of(source): f"the scenario {source}"}
    taken |= {place_of(path): f"the input {path}" for path in inputs}
    taken |= {place_of(path): f"a file of the scenario {source}" for path in files_of(source)} if wanted else {}
    endings = {"gantt": PICTURES, "trace": (".json", ".json.gz"), "save": (".json", ".json.gz")}
    for name, path in wanted.items():
        if not path.lower().endswith(endings[name]) and not path.startswith("/dev/"):
            problems.append(f"--{name}: {path}: the name must end in {' or '.join(endings[name])}")
        other = taken.setdefault(place_of(path), f"the output of --{name}")
        if other != f"the output of --{name}" and not path.startswith("/dev/"):
            problems.append(f"--{name}: {path} is {other} too")
    if problems:
        raise InputError(problems)


def files_of(source: str) -> Iterator[str]:
    """What a scenario file names and is there; its reader tells what is wrong with it."""
    from ..files.reading import read_json
    from ..files.scenario import named_files

    if os.path.isfile(source):
        value = read_json(source)
        if isinstance(value, dict):
            yield from filter(os.path.isfile, named_files(value, os.path.dirname(source)))


def place_of(path: str) -> str:
    """Where a path really leads, as far as can be told."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def is_faulty(trace: Trace) -> bool:
    """Whether the checker finds a fault; its findings go to stderr."""
    from ..check import check

    violations = check(trace.task_graph, trace)
    for violation in violations:
        print(violation, file=sys.stderr)
    count = len(trace.task_graph.tasks)
    print(f"check: {count:,} tasks, {len(violations) or 'no'} violation{'s' * (len(violations) > 1)}", file=sys.stderr)
    return bool(violations)


def write(trace: Trace, places: dict[str, str], figure: Callable[[], Figure]) -> None:
    """Write what is wanted; the chart is drawn only then."""
    if "save" in places:
        from ..files import write_run

        write_run(trace, places["save"])
    if "trace" in places:
        from ..export import export_chrome_trace

        export_chrome_trace(trace, places["trace"])
    if "gantt" in places:
        save_figure(figure(), places["gantt"])


def _figure(report: Report) -> Figure:
    from ..plot import gantt_figure, sync_figure

    return gantt_figure(report.trace) if report.steady is None else sync_figure(report.trace, report.steady)


def save_figure(figure: Figure, place: str) -> None:
    """Same figure, same bytes: no dates, no random ids."""
    import matplotlib

    kind = os.path.splitext(place)[1][1:].lower() or "png"
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": "simdev"}):
        figure.savefig(place, format=kind, metadata=dates.get(kind))


class _Progress:
    """A bar on stderr for what takes longer than two seconds, where somebody watches."""

    def __init__(self, steps: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=steps, delay=2, disable=None, leave=False, desc="load", file=sys.stderr)

    def next(self, step: str) -> None:
        """The next step begins."""
        self._bar.set_description(step, refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Clear the bar."""
        self._bar.close()
