"""``simdev search SCENARIO --method NAME``: look for a better placement; ``--compare LIST``: by
several methods.

Methods are rows of ``search/methods.py``, not options here. An argument of ``search`` or
``run_comparison`` has its option in OPTIONS, and its name in FLAGS if errors may name it;
``searched`` puts the answer of one method into words.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..ground.errors import InputError, refuse
from .options import (
    DONE,
    DRAW_OPTIONS,
    FAILED_CHECK,
    INFEASIBLE,
    INTERRUPTED,
    SCENARIO_HELP,
    by_flags,
    flag,
    require_drawn,
)
from .outputs import (
    JSON,
    PICTURES,
    drawing,
    files_of,
    json_text,
    output_files,
    printed_first,
    progress_bar,
    save_figure,
    tell,
)
from .searched import Marks, text_of

if TYPE_CHECKING:
    from ..execution.check import Violation
    from ..execution.scenario import Scenario
    from ..nouns.draws import Draws
    from ..nouns.strategy import Strategy
    from ..search import Comparison, Result
    from ..search.comparison.runs import Run

HELP = "look for a better placement by the placers and partitioners of the papers"
DESCRIPTION = (
    "Run one method on a scenario, or several to compare them. The best strategy is run once more "
    "by the reference engine and judged by the checker. Exits 1 where nothing was found that fits "
    "into memory."
)
OPTIONS = (
    ("file", "SCENARIO", SCENARIO_HELP),
    ("--method", "NAME", "see docs/reference/methods.md; a wrong name lists them"),
    ("--budget", "N", "placements to evaluate at most (default: the method's)"),
    ("--seconds", "S", "time to search at most"),
    ("--seed", "N", "of what is random (default 0)", {"default": 0}),
    (
        "--prepare",
        "LIST",
        "of colocate, coplace, pair, fuse, forward, adjust (comma-separated), or none; "
        "adjust:RULE chooses by first, frequent, memory, memory-sum, time or time-sum",
    ),
    ("-o --output", "OUT", "write the best strategy (.json, .json.gz)"),
    DRAW_OPTIONS[0],
    ("--json", "", "print objectives, provenance and curves as JSON"),
    ("--chains", "N", "walks side by side, of local search (default 1); they exchange, see -j"),
    ("--settings", "LIST", "of a learner: published, NAME=VALUE (comma-separated)"),
    (
        "--warm",
        "NAME",
        "what a learner imitates first: auto (default), random for nothing, or a method, as in "
        "annealing or annealing:0.2 with a share of the budget",
    ),
    ("--policy", "FILE", "a saved policy that a learner begins with"),
    ("--no-train", "", "evaluate the policy without learning"),
    ("--save-policy", "OUT", "write what a learner learned (.safetensors)"),
    (
        "-j --jobs",
        "N",
        "processes at once, of chains, a learner or a comparison, -1 on all cores (default 1)",
    ),
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
BUDGET = 5000  # evaluations of each method of a comparison without limits, equal for all
OF_ONE = ("chains", "policy", "save_policy")  # options that go with a single method
OF_SEVERAL = ("seeds", "plot", "journal")
# Arguments of ``search``, with which its problems begin, and their options here.
NAMES = "method", "budget", "seconds", "seed", "prepare", "chains", "settings", "warm", "policy"
FLAGS = {name: flag(name) for name in (*NAMES, "seeds", "plot")}
FLAGS |= {"train": "--no-train", "n_jobs": "--jobs"}
UNJUDGED = "interrupted before the answer was confirmed by the reference engine and the checker"
EARLY = "interrupted before there was an answer: nothing is written"


def run(args: Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    from ..files.examples import scenario_path

    _check_options(args)
    require_drawn(args)
    args.file = scenario_path(args.file)
    outputs = {"output": JSON, "save_policy": (".safetensors",), "plot": PICTURES}
    with ExitStack() as stack:
        with _unanswered():
            out = stack.enter_context(output_files(args, outputs, _inputs(args)))
            from ..execution.scenario import load_scenario

            _check_learns(args)
            scenario = load_scenario(args.file)
        try:
            return (_search if args.compare is None else _compare)(args, scenario, out)
        except InputError as error:
            if error.problems[0].partition(":")[0] in FLAGS:
                raise by_flags(error, FLAGS) from None
            raise error.within("<stdin>" if args.file == "-" else args.file) from None


def _check_options(args: Namespace) -> None:
    """Raises InputError for options that do not go together, and SystemExit (2) where neither
    ``--method`` nor ``--compare`` is given.
    """
    if (args.method is None) == (args.compare is None):
        args.usage_error("one of --method and --compare is needed")
    others, needed = (OF_SEVERAL, "--compare") if args.compare is None else (OF_ONE, "--method")
    problems = [
        f"{flag(name)}: goes with {needed}" for name in others if getattr(args, name) is not None
    ]
    for name in ("no_train", "draws") if args.compare is not None else ():
        if getattr(args, name):
            problems.append(f"{flag(name)}: goes with --method")
    refuse(problems)


@contextmanager
def _unanswered() -> Iterator[None]:
    """Gives Ctrl-C in the block, before anything is evaluated, a message that says so."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(EARLY) from None


def _judged(
    scenario: Scenario, result: Result, beside: bool = False
) -> tuple[tuple[Violation, ...] | None, Marks]:
    """The violations that the reference engine and the checker find in an answer, also printed on
    stderr, and with ``beside`` the figures to compare it with. Ctrl-C gives None in place of the
    violations and keeps the answer.
    """
    from ..oracle import oracle_of
    from ..search import confirm
    from ..search.comparison.runs import references_of
    from ..search.space import least_ps, rank_of

    marks, faults = Marks(), None
    try:
        oracle = oracle_of(scenario)
        if beside:
            # Parts of an op may take less time in sum than the op, so no bound holds for splits.
            least = None if result.provenance["groups"] is None else least_ps(oracle)
            references = references_of(oracle, scenario.strategy)
            marks = Marks(references, least, rank_of(oracle, result.cost))
        faults = confirm(oracle, result)
    except KeyboardInterrupt:
        tell(UNJUDGED)
    tell(*map(str, faults or ()), *result.obstacles)
    return faults, marks


def _search(args: Namespace, scenario: Scenario, out: Mapping[str, str]) -> int:
    """Run one method, write and print its answer; returns the exit code."""
    with _unanswered():
        from ..execution.scenario import graph_of
        from ..report.page import rivalry, rivalry_json

        result = _searched(args, scenario)
    faults, marks = _judged(scenario, result, beside=True)
    draws = _draws(args, scenario, result.strategy)
    if args.json:
        entry = {} if draws is None else {"draws": rivalry_json(*draws)}
        answer = json_text(result.to_json() | marks.to_json() | entry)
    else:
        answer = text_of(result, len(graph_of(scenario).ops), marks, faults == ())
        if draws is not None:
            answer += "\n" + rivalry(*draws, "it", "the scenario's strategy")
    with printed_first(answer):
        _write(result, out)
        if "save_policy" in out:
            _save_policy(result, args.save_policy, out["save_policy"])
    return _exit_code(result, faults)


def _draws(args: Namespace, scenario: Scenario, strategy: Strategy) -> tuple[Draws, Draws] | None:
    """The draws of the strategy that the search found and of the scenario's, by common random
    numbers; None without ``--draws``, or where the scenario's own strategy cannot run.
    """
    from ..report import drawn

    pair = []
    for each in (strategy, scenario.strategy) if args.draws else ():
        try:
            outcome = drawn(replace(scenario, strategy=each), None, args.draws, args.seed, drawing)
        except InputError:
            return None
        if outcome.draws is not None:
            pair.append(outcome.draws)
    return (pair[0], pair[1]) if pair else None


def _exit_code(result: Result, faults: tuple[Violation, ...] | None) -> int:
    if faults is None:
        return INTERRUPTED
    if faults:
        return FAILED_CHECK
    return DONE if result.cost.feasible else INFEASIBLE


def _compare(args: Namespace, scenario: Scenario, out: Mapping[str, str]) -> int:
    """Run several methods, write the best answer, plot and print all; returns the exit code."""
    with _unanswered():
        comparison, best = _compared(args, scenario)
    result = None if best is None else best.result
    faults = None if result is None else _judged(scenario, result)[0]
    with printed_first(_comparison_text(args, comparison, best, faults == ())):
        if result is not None:
            _write(result, out)
            if "plot" in out:
                save_figure(comparison.plot(_name_of(args.file)), out["plot"])
    # Without an answer nothing was written.
    if result is None:
        raise InputError("no method has an answer")
    return _exit_code(result, faults)


def _compared(args: Namespace, scenario: Scenario) -> tuple[Comparison, Run | None]:
    """The comparison, and its best run. Raises InputError."""
    from ..search import run_comparison

    limit = BUDGET if args.budget is None and args.seconds is None else args.budget
    methods = [label.strip() for label in args.compare.split(",")]
    more = {} if args.seeds is None else {"seeds": args.seeds}
    comparison = run_comparison(
        methods, {_name_of(args.file): scenario}, limit, args.seed, args.seconds, _prepare(args),
        settings=args.settings, warm=args.warm, n_jobs=args.jobs, journal=args.journal, **more,
    )  # fmt: skip
    return comparison, comparison.best(_name_of(args.file))


def _name_of(file: str) -> str:
    """The name of a scenario in tables and pictures: its file without the folder."""
    return "stdin" if file == "-" else os.path.basename(file)


def _comparison_text(
    args: Namespace, comparison: Comparison, best: Run | None, confirmed: bool
) -> str:
    """The comparison as JSON or as tables; stderr gets the reasons of methods without an answer."""
    from ..ground.units import format_seconds
    from ..report.table import table_text
    from ..search.comparison.comparison import DIGITS, unanswered, whole_table

    name = _name_of(args.file)
    tell(*unanswered(comparison, name))
    if args.json:
        return json_text(comparison.to_json(name))
    parts = [table_text(table, None) for table in whole_table(comparison, name)]
    if best is not None and best.result is not None:
        step = format_seconds(best.result.cost.seconds, DIGITS)
        by = f"the best of all: {step}, by {best.method} with seed {best.seed}"
        judged = "; confirmed by the reference engine and the checker" if confirmed else ""
        parts.append(by + judged)
    if comparison.interrupted:
        parts.append("interrupted: this is what was there")
    return "\n\n".join(parts)


def _write(result: Result, out: Mapping[str, str]) -> None:
    """Write the strategy, even where the checker finds faults, which the exit code reports."""
    if "output" in out:
        from ..files import write_strategy

        write_strategy(result.strategy, out["output"])


def _inputs(args: Namespace) -> Iterator[tuple[str, str]]:
    file = args.file
    yield file, f"the scenario {file}"
    yield from ((path, f"a file of {file}") for path in files_of(file))
    if args.policy is not None:
        yield args.policy, "the policy of --policy"
    if args.journal is not None:
        yield args.journal, "the journal of --journal"


def _check_learns(args: Namespace) -> None:
    """Raises InputError for ``--save-policy`` with a method that learns no policy."""
    from ..search import METHODS
    from ..search.learners import keeps_none, of_learners_alone

    method = METHODS.get(args.method)
    if args.save_policy is None or method is None:
        return
    if method.learner is None:
        raise InputError(of_learners_alone("--save-policy", args.method))
    if not method.keeps:
        raise InputError(keeps_none("--save-policy", args.method))


def _save_policy(result: Result, path: str, place: str) -> None:
    if result.policy is not None:
        result.policy.save(place)
        return
    Path(place).unlink(missing_ok=True)  # so that an earlier file at ``path`` stays
    tell(f"--save-policy: nothing was learned yet; {path} is not written")


def _prepare(args: Namespace) -> list[str] | None:
    """The preparations: an empty list for "none", or None, which leaves them to the method."""
    if args.prepare == "none":
        return []
    return None if args.prepare is None else args.prepare.split(",")


def _searched(args: Namespace, scenario: Scenario) -> Result:
    from ..search import search

    with progress_bar("search", total=args.budget, unit="ev") as bar:
        return search(
            scenario, args.method, args.budget, args.seed, args.seconds, _prepare(args),
            lambda count: bar.update(count - bar.n), args.settings, args.warm, args.policy,
            not args.no_train, args.jobs, args.chains,
        )  # fmt: skip
