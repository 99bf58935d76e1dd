"""``simdev search SCENARIO --method NAME``: look for a better placement; ``--compare LIST``: by
several methods.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from . import comparison as several
from .options import DONE, FAILED_CHECK, INFEASIBLE
from .outputs import JSON, PICTURES, files_of, output_files, progress_bar

if TYPE_CHECKING:
    from ..oracle import Cost
    from ..scenario import Scenario
    from ..search import Result

HELP = "look for a better placement by the placers and partitioners of the papers"
DESCRIPTION = (
    "Run one method on a scenario, or several to compare them. The best strategy is run once more "
    "by the reference engine and judged by the checker. Exits 1 where nothing was found that fits "
    "into memory."
)
OPTIONS = (
    ("file", "SCENARIO", "the scenario (JSON, may be gzipped; - is stdin)"),
    ("--method", "NAME", "see docs/search.md; a wrong name lists them"),
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
    ("--json", "", "print objectives, provenance and curves as JSON"),
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
        "processes at once, of a learner or of a comparison, -1 on all cores (default 1)",
    ),
    *several.OPTIONS,
)
# Arguments of ``search``, which are the first words of its problems, and the options that they are
# here.
FLAGS = {name: f"--{name}" for name in ("method", "budget", "seconds", "seed", "prepare")}
FLAGS |= {name: f"--{name}" for name in ("settings", "warm", "policy")}
FLAGS |= {"train": "--no-train", "n_jobs": "--jobs", "seeds": "--seeds", "plot": "--plot"}
DIGITS = 6  # of times: what a search gains is often in the last of them
SHORT = 4  # of times that only explain others
ENDS = {
    "done": "ended by itself",
    "budget": "budget spent",
    "time": "time is up",
    "interrupted": "interrupted",
}


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    several.check_options(args)
    outputs = {"output": JSON, "save_policy": (".safetensors",), "plot": PICTURES}
    with output_files(args, outputs, _inputs(args)) as out:
        from ..scenario import load_scenario

        _check_learns(args)
        scenario = load_scenario(args.file)
        try:
            return (_search if args.compare is None else _compare)(args, scenario, out)
        except InputError as error:
            if error.problems[0].partition(":")[0] in FLAGS:
                raise InputError([_flagged(problem) for problem in error.problems]) from None
            raise error.within("<stdin>" if args.file == "-" else args.file) from None


def _search(args: argparse.Namespace, scenario: Scenario, out: Mapping[str, str]) -> int:
    """Run one method, write and print what it found; the exit code."""
    from ..oracle import oracle_of
    from ..search import confirm, present_cost

    result = _searched(args, scenario)
    oracle = oracle_of(scenario)
    faults, present = confirm(oracle, result), present_cost(oracle, scenario.strategy)
    _write(result, out)
    if "save_policy" in out:
        _save_policy(result, args.save_policy, out["save_policy"])
    _print_lines(*map(str, faults), *result.obstacles)
    if args.json:
        beside = {"present_step_time_s": None if present is None else present.seconds}
        print(json.dumps(result.to_json() | beside, indent=1, allow_nan=False))
    else:
        print(_text(result, present, not faults))
    if faults:
        return FAILED_CHECK
    return DONE if result.cost.feasible else INFEASIBLE


def _compare(args: argparse.Namespace, scenario: Scenario, out: Mapping[str, str]) -> int:
    """Run several methods, write the best of all, draw and print them; the exit code."""
    from ..oracle import oracle_of
    from ..search import confirm

    comparison, best = several.compared(args, scenario, _prepare(args))
    result = None if best is None else best.result
    faults = () if result is None else confirm(oracle_of(scenario), result)
    if result is not None:
        _write(result, out)
        _print_lines(*map(str, faults), *result.obstacles)
    if "plot" in out and result is not None:
        several.draw(args, comparison, out["plot"])
    several.report(args, comparison, best, not faults)
    return several.exit_code(result, not faults)


def _write(result: Result, out: Mapping[str, str]) -> None:
    """Write the strategy, also where the checker finds faults: the exit code tells of them."""
    if "output" in out:
        from ..files import write_strategy

        write_strategy(result.strategy, out["output"])


def _print_lines(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _inputs(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    file = args.file
    yield file, f"the scenario {file}"
    yield from ((path, f"a file of {file}") for path in files_of(file))
    if args.policy is not None:
        yield args.policy, "the policy of --policy"
    if args.journal is not None:
        yield args.journal, "the journal of --journal"


def _check_learns(args: argparse.Namespace) -> None:
    """Raises InputError for ``--save-policy`` with a method that learns nothing."""
    from ..search import METHODS

    method = METHODS.get(args.method)
    if args.save_policy is not None and method is not None and method.learner is None:
        raise InputError(f"--save-policy: {args.method} is no learner")


def _flagged(problem: str) -> str:
    """A problem of an argument of ``search`` as one of the option."""
    name, colon, reason = problem.partition(":")
    return f"{FLAGS.get(name, name)}{colon}{reason}"


def _save_policy(result: Result, path: str, place: str) -> None:
    if result.policy is not None:
        result.policy.save(place)
        return
    Path(place).unlink(missing_ok=True)  # so that what is at ``path`` stays
    print(f"--save-policy: nothing was learned yet; {path} is not written", file=sys.stderr)


def _prepare(args: argparse.Namespace) -> list[str] | None:
    """The preparations: "none" is none at all, where None leaves it to the method."""
    if args.prepare == "none":
        return []
    return None if args.prepare is None else args.prepare.split(",")


def _searched(args: argparse.Namespace, scenario: Scenario) -> Result:
    from ..search import search

    with progress_bar("search", total=args.budget, unit="ev") as bar:
        return search(
            scenario, args.method, args.budget, args.seed, args.seconds, _prepare(args),
            lambda count: bar.update(count - bar.n), args.settings, args.warm, args.policy,
            not args.no_train, args.jobs,
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
    if "warm" in result.details:
        lines += _beginning(result)
    executed = "execution" in result.details
    shown = {"step_time_s", *(("period_s", "executed_period_s") if executed else ())}
    lines += [
        f"{name}: {value:.6g}" for name, value in result.objectives.items() if name not in shown
    ]
    if executed:
        lines.append(_executed(result.objectives["period_s"], result.details["execution"]))
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


def _executed(planned_s: float, execution: Mapping[str, Any]) -> str:
    """The period of a pipeline as planned and as executed, and where the difference comes from."""
    from ..units import format_bytes, format_seconds

    period_s, steps = execution["period_s"], ("alone_s", "in_turn_s", "together_s")
    alone, in_turn, together = (format_seconds(execution[name], SHORT) for name in steps)
    share = f" ({period_s / planned_s - 1:+.1%})" if planned_s else ""
    steady = "" if execution["steady"] else ", not steady yet"
    over = execution["memory_excess_bytes"]
    return (
        f"planned {format_seconds(planned_s, DIGITS)}, executed {format_seconds(period_s, DIGITS)} "
        f"a minibatch{share}{steady}: its slowest stage alone takes {alone}, all stages in turn "
        f"{in_turn}, with replicas that synchronise {together}, and transfers make the rest"
        + (f"; does not fit: {format_bytes(over)} over" if over else "")
    )


def _fit(cost: Cost) -> str:
    from ..units import format_bytes

    if cost.feasible:
        peak = format_bytes(max(cost.peaks, default=0))
        return f"fits; the fullest device holds {peak} at its peak"
    over = cost.memory_excess
    return f"does not fit: {over:,} bytes ({format_bytes(over)}) over; nothing that fits was found"


def _beginning(result: Result) -> Iterator[str]:
    """The start that a learner was given, and whether it met anything better."""
    from ..units import format_seconds

    warm = result.details["warm"]
    seconds, imitated = (
        "-" if warm[name] is None else format_seconds(warm[name], DIGITS)
        for name in ("step_time_s", "imitated_s")
    )
    if warm["name"] == "auto":
        how = "at random; the best start" if warm["imitated_s"] is None else "at the best start"
        yield f"began {how}: {seconds}"
    elif warm["imitated_s"] is None:
        yield f"{warm['name']}: {seconds}; groups that cannot stand so, so it was not imitated"
    else:
        together = f"; {imitated} with its groups together" if warm["split"] else ""
        yield f"began at {warm['name']}: {seconds}{together}"
    if result.points[-1].evaluation <= warm["evaluations"]:
        yield "no sample was better than that start"


def _proof(details: Mapping[str, Any]) -> str:
    """What branch and bound showed."""
    from ..units import format_seconds

    if details["exact"]:
        return f"proved to be the best of {details['space']:,} strategies"
    if not details["bound_s"]:
        return "nothing is proved yet"
    bound = format_seconds(details["bound_s"], DIGITS)
    return f"not proved to be the best: no strategy is under {bound}"
