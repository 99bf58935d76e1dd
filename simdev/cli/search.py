"""``simdev search SCENARIO --method NAME``: look for a better placement."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .options import DONE, FAILED_CHECK, INFEASIBLE
from .outputs import JSON, files_of, output_files, progress_bar

if TYPE_CHECKING:
    from ..oracle import Cost
    from ..scenario import Scenario
    from ..search import Result

HELP = "look for a better placement by the placers and partitioners of the papers"
DESCRIPTION = (
    "Run one method on a scenario. The best strategy is run once more by the reference engine and "
    "judged by the checker. Exits 1 where nothing was found that fits into memory."
)
OPTIONS = (
    ("file", "SCENARIO", "the scenario (JSON, may be gzipped; - is stdin)"),
    ("--method", "NAME", "see docs/search.md; a wrong name lists them", {"required": True}),
    ("--budget", "N", "placements to evaluate at most (default: the method's)"),
    ("--seconds", "S", "time to search at most"),
    ("--seed", "K", "of what is random (default 0)", {"default": 0}),
    (
        "--prepare",
        "LIST",
        "of colocate, coplace, pair, fuse, forward, adjust (comma-separated), or none; "
        "adjust:RULE chooses by first, frequent, memory, memory-sum, time or time-sum",
    ),
    ("-o --output", "OUT", "write the best strategy (.json, .json.gz)"),
    ("--json", "", "print objectives, provenance and curve as JSON"),
)
# Arguments of ``search`` that are options here, and so are the first words of its problems.
QUESTION = ("method", "budget", "seconds", "seed", "prepare")
DIGITS = 6  # of times: what a search gains is often in the last of them
ENDS = {
    "done": "ended by itself",
    "budget": "budget spent",
    "time": "time is up",
    "interrupted": "interrupted",
}


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    with output_files(args, {"output": JSON}, _inputs(args.file)) as out:
        from ..oracle import oracle_of
        from ..scenario import load_scenario
        from ..search import confirm, present_cost

        scenario = load_scenario(args.file)
        try:
            result = _searched(args, scenario)
            oracle = oracle_of(scenario)
            faults, present = confirm(oracle, result), present_cost(oracle, scenario.strategy)
        except InputError as error:
            if error.problems[0].partition(":")[0] in QUESTION:
                raise InputError([f"--{problem}" for problem in error.problems]) from None
            raise error.within("<stdin>" if args.file == "-" else args.file) from None
        # Written also where the checker finds faults: the exit code tells of them.
        if "output" in out:
            from ..files import write_strategy

            write_strategy(result.strategy, out["output"])
    for line in (*map(str, faults), *result.obstacles):
        print(line, file=sys.stderr)
    if args.json:
        beside = {"present_step_time_s": None if present is None else present.seconds}
        print(json.dumps(result.to_json() | beside, indent=1, allow_nan=False))
    else:
        print(_text(result, present, not faults))
    if faults:
        return FAILED_CHECK
    return DONE if result.cost.feasible else INFEASIBLE


def _inputs(file: str) -> Iterator[tuple[str, str]]:
    yield file, f"the scenario {file}"
    yield from ((path, f"a file of {file}") for path in files_of(file))


def _searched(args: argparse.Namespace, scenario: Scenario) -> Result:
    from ..search import search

    # "none" is no preparation at all, where None leaves it to the method.
    prepare = None if args.prepare is None else args.prepare.split(",")
    if args.prepare == "none":
        prepare = []
    with progress_bar("search", total=args.budget, unit="ev") as bar:
        return search(
            scenario, args.method, args.budget, args.seed, args.seconds, prepare,
            lambda count: bar.update(count - bar.n),
        )  # fmt: skip


def _text(result: Result, present: Cost | None, confirmed: bool) -> str:
    from ..units import format_seconds

    run, evaluations = result.provenance, result.provenance["evaluations"]
    lines = [
        f"{run['method']}: step time {format_seconds(result.objectives['step_time_s'], DIGITS)}"
    ]
    if present is not None:
        fits = "" if present.feasible else ", which does not fit"
        lines.append(f"the scenario's strategy: {format_seconds(present.seconds, DIGITS)}{fits}")
    lines += [
        f"{name}: {value:.6g}" for name, value in result.objectives.items() if name != "step_time_s"
    ]
    lines += [
        _fit(result.cost),
        f"first placement tried: {format_seconds(result.points[0].step_ps / 1e12, DIGITS)}",
        f"{evaluations:,} evaluation{'s' * (evaluations != 1)}, {run['cpu_seconds']:.2f} CPU "
        f"seconds; {ENDS[run['ended']]}; seed {run['seed']}",
    ]
    if "bound_s" in result.details:
        lines.append(_proof(result.details))
    if confirmed:
        lines.append("confirmed by the reference engine and the checker")
    return "\n".join(lines)


def _fit(cost: Cost) -> str:
    from ..units import format_bytes

    if cost.feasible:
        peak = format_bytes(max(cost.peaks, default=0))
        return f"fits; the fullest device holds {peak} at its peak"
    over = cost.memory_excess
    return f"does not fit: {over:,} bytes ({format_bytes(over)}) over; nothing that fits was found"


def _proof(details: Mapping[str, Any]) -> str:
    """What branch and bound showed."""
    from ..units import format_seconds

    if details["exact"]:
        return f"proved to be the best of {details['space']:,} strategies"
    if not details["bound_s"]:
        return "nothing is proved yet"
    bound = format_seconds(details["bound_s"], DIGITS)
    return f"not proved to be the best: no strategy is under {bound}"
