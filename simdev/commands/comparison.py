"""``simdev search SCENARIO --compare LIST``: several methods on the same scenario."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING

from ..ground.errors import InputError
from .options import DONE, FAILED_CHECK, INFEASIBLE
from .outputs import save_figure, tell

if TYPE_CHECKING:
    from ..execution.scenario import Scenario
    from ..search import Comparison, Result
    from ..search.comparison.runs import Run

OPTIONS = (
    (
        "--compare",
        "LIST",
        "in place of --method: several on the same question (comma-separated; all; "
        "post+m-sct is a learner with its warm start)",
    ),
    ("--seeds", "N", "of a comparison: how many seeds, from --seed on (default 5)"),
    ("--plot", "OUT", "draw the curves of a comparison (.png, .svg, .pdf)"),
    ("--journal", "FILE", "keep the runs of a comparison, which a second one goes on from"),
)
BUDGET = 5000  # of each method, where a comparison is given no limits: all shall have the same
OF_ONE = ("chains", "policy", "save_policy")  # options that go with a single method
OF_SEVERAL = ("seeds", "plot", "journal")


def check_options(args: argparse.Namespace) -> None:
    """Raises InputError for options that do not go together, and SystemExit (2) where nothing says
    what to run.
    """
    if (args.method is None) == (args.compare is None):
        args.usage_error("one of --method and --compare is needed")
    others, needed = (OF_SEVERAL, "--compare") if args.compare is None else (OF_ONE, "--method")
    problems = [
        f"--{name.replace('_', '-')}: goes with {needed}"
        for name in others
        if getattr(args, name) is not None
    ]
    if args.compare is not None and args.no_train:
        problems.append("--no-train: goes with --method")
    if problems:
        raise InputError(problems)


def compared(
    args: argparse.Namespace, scenario: Scenario, prepare: list[str] | None
) -> tuple[Comparison, Run | None]:
    """The comparison, and its best run. Raises InputError."""
    from ..search import run_comparison

    limit = BUDGET if args.budget is None and args.seconds is None else args.budget
    methods = [label.strip() for label in args.compare.split(",")]
    more = {} if args.seeds is None else {"seeds": args.seeds}
    comparison = run_comparison(
        methods, {name_of(args.file): scenario}, limit, args.seed, args.seconds, prepare,
        settings=args.settings, warm=args.warm, n_jobs=args.jobs, journal=args.journal, **more,
    )  # fmt: skip
    return comparison, comparison.best(name_of(args.file))


def name_of(file: str) -> str:
    """The name of a scenario in tables and pictures: its file without the folder."""
    return "stdin" if file == "-" else os.path.basename(file)


def draw(args: argparse.Namespace, comparison: Comparison, place: str) -> None:
    """Fill the place of ``--plot``."""
    save_figure(comparison.plot(name_of(args.file)), place)


def text_of(
    args: argparse.Namespace, comparison: Comparison, best: Run | None, confirmed: bool
) -> str:
    """The comparison as JSON or as tables; why methods have no answer goes to stderr."""
    from ..ground.units import format_seconds
    from ..report.table import table_text
    from ..search.comparison.comparison import DIGITS, unanswered, whole_table

    name = name_of(args.file)
    tell(*unanswered(comparison, name))
    if args.json:
        return json.dumps(comparison.to_json(name), indent=1, allow_nan=False)
    parts = [table_text(table, None) for table in whole_table(comparison, name)]
    if best is not None and best.result is not None:
        step = format_seconds(best.result.cost.seconds, DIGITS)
        by = f"the best of all: {step}, by {best.method} with seed {best.seed}"
        judged = "; confirmed by the reference engine and the checker" if confirmed else ""
        parts.append(by + judged)
    if comparison.interrupted:
        parts.append("interrupted: this is what was there")
    return "\n\n".join(parts)


def exit_code(result: Result | None, confirmed: bool) -> int:
    """The exit code of a search. Raises InputError where no method has an answer: then nothing is
    written.
    """
    if result is None:
        raise InputError("no method has an answer")
    if not confirmed:
        return FAILED_CHECK
    return DONE if result.cost.feasible else INFEASIBLE
