"""``simdev simulate FILE``: the step time of a scenario, and whether it fits."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from ..errors import DeadlockError, InputError
from . import training
from .codes import DONE, FAILED_CHECK, INFEASIBLE
from .traces import is_faulty, outputs, shown_name, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..analysis import Report
    from ..scenario import Scenario


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "simulate",
        help="simulate a scenario: step time, utilization, memory, critical path",
        description="Simulate one training step. Exits 1 where the step does not fit into memory.",
        allow_abbrev=False,
    )
    found.add_argument(
        "file", nargs="?", metavar="FILE", help="the scenario (JSON, may be gzipped; - is stdin)"
    )
    found.add_argument(
        "--engine", choices=("auto", "simpy", "compiled"), help="default: what the scenario says"
    )
    found.add_argument("--gantt", metavar="OUT", help="draw the timeline (.png, .svg or .pdf)")
    found.add_argument(
        "--trace", metavar="OUT", help="write a trace for Perfetto (.json or .json.gz)"
    )
    found.add_argument(
        "--save", metavar="OUT", help="save the run, for simdev check (.json or .json.gz)"
    )
    found.add_argument("--json", action="store_true", help="print the report as JSON")
    found.add_argument(
        "--check", action="store_true", help="judge the result by the independent checker too"
    )
    found.add_argument(
        "--strict", action="store_true", help="refuse op times that are estimates and name the ops"
    )
    training.add_arguments(found)
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    with outputs(args) as places:
        from ..analysis import analyze
        from ..scenario import execute

        progress = _Progress(5)
        scenario = _scenario(args)
        progress.next("simulate")
        try:
            outcome = execute(scenario)
        except (DeadlockError, InputError) as error:
            raise training.told_by_options(args, error) or error.within(
                shown_name(args.file)
            ) from None
        progress.next("analyze")
        report = analyze(outcome)
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


def _scenario(args: argparse.Namespace) -> Scenario:
    """The scenario of the file or of the options; what is wrong is told of its place there."""
    from dataclasses import replace

    from ..scenario import load_scenario

    source = training.document(args) or (_stdin() if args.file == "-" else args.file)
    try:
        scenario = load_scenario(source)
    except InputError as error:
        # a file is named by its reader
        told = error.within("<stdin>") if args.file == "-" else error
        raise training.told_by_options(args, error) or told from None
    changes: dict[str, Any] = {} if args.engine is None else {"engine": args.engine}
    changes |= {"costs": replace(scenario.costs, strict=True)} if args.strict else {}
    changes |= {"symmetry": False} if args.no_symmetry else {}
    try:
        return replace(scenario, **changes)
    except InputError as error:
        names = {"costs": "--strict", "symmetry": "--no-symmetry", "engine": "--engine"}
        parts = (problem.partition(":") for problem in error.problems)
        raise InputError(
            [f"{names.get(name, name)}:{reason}" for name, _, reason in parts]
        ) from None


def _figure(report: Report) -> Figure:
    from ..plot import gantt_figure, sync_figure
    from ..plot.training import training_figure

    if report.training is not None:
        return training_figure(report)
    return (
        gantt_figure(report.trace)
        if report.steady is None
        else sync_figure(report.trace, report.steady)
    )


class _Progress:
    """A bar on stderr for what takes longer than two seconds, where somebody watches."""

    def __init__(self, steps: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            total=steps, delay=2, disable=None, leave=False, desc="load", file=sys.stderr
        )

    def next(self, step: str) -> None:
        """The next step begins."""
        self._bar.set_description(step, refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Clear the bar."""
        self._bar.close()
