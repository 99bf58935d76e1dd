"""``simdev search SCENARIO --method NAME``: look for a better placement."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .codes import DONE, FAILED_CHECK, INFEASIBLE
from .outputs import files_of, place_for, place_of

if TYPE_CHECKING:
    from ..search import Result

ENDINGS = (".json", ".json.gz")
DELAY = 2.0  # seconds before a bar is shown


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "search",
        help="look for a better placement by the placers and partitioners of the papers",
        description="Run one method on a scenario. The best strategy is run once more by the "
        "reference engine and "
        "judged by the checker. Exits 1 where nothing was found that fits into memory.",
        allow_abbrev=False,
    )
    found.add_argument(
        "file", metavar="SCENARIO", help="the scenario (JSON, may be gzipped; - is stdin)"
    )
    found.add_argument(
        "--method",
        required=True,
        metavar="NAME",
        help="see docs/search.md; a wrong name lists them",
    )
    found.add_argument(
        "--budget",
        type=int,
        metavar="N",
        help="placements to evaluate at most (default: the method's)",
    )
    found.add_argument("--seconds", type=float, metavar="S", help="time to search at most")
    found.add_argument(
        "--seed", type=int, default=0, metavar="K", help="of what is random (default 0)"
    )
    found.add_argument(
        "--prepare",
        metavar="LIST",
        help="of colocate, coplace, pair, fuse, forward, adjust (comma-separated), or none; "
        "adjust:RULE chooses "
        "by first, frequent, memory, memory-sum, time or time-sum",
    )
    found.add_argument(
        "-o", "--output", metavar="OUT", help="write the best strategy (.json, .json.gz)"
    )
    found.add_argument(
        "--json", action="store_true", help="print objectives, provenance and curve as JSON"
    )
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    with _output(args) as place:
        from ..oracle import oracle_of
        from ..scenario import load_scenario
        from ..search import confirm, search

        scenario = load_scenario(args.file)
        try:
            with _bar(args.budget) as progress:
                result = search(
                    scenario,
                    args.method,
                    args.budget,
                    args.seed,
                    args.seconds,
                    _prepare(args.prepare),
                    progress,
                )
            faults = confirm(oracle_of(scenario), result)
        except InputError as error:
            if error.problems[0].partition(":")[0] in (
                "method",
                "budget",
                "seconds",
                "seed",
                "prepare",
            ):
                raise InputError([f"--{problem}" for problem in error.problems]) from None
            raise error.within("<stdin>" if args.file == "-" else args.file) from None
        if place is not None:
            from ..files import write_strategy

            write_strategy(result.strategy, place)
    for line in (*map(str, faults), *result.obstacles):
        print(line, file=sys.stderr)
    print(
        json.dumps(result.to_json(), indent=1, allow_nan=False)
        if args.json
        else _text(result, not faults)
    )
    if faults:
        return FAILED_CHECK
    return DONE if result.cost.feasible else INFEASIBLE


def _prepare(text: str | None) -> list[str] | None:
    """The preparations named, None where nothing is said."""
    if text is None:
        return None
    return [] if text == "none" else text.split(",")


@contextmanager
def _output(args: argparse.Namespace) -> Iterator[str | None]:
    """The temporary file to fill, which takes its place at the end.

    Raises InputError before any work.
    """
    path = args.output
    if path is None:
        yield None
        return
    if not path.lower().endswith(ENDINGS) and not path.startswith("/dev/"):
        raise InputError(f"--output: {path}: the name must end in {' or '.join(ENDINGS)}")
    if args.file != "-" and os.path.realpath(path) == os.path.realpath(args.file):
        raise InputError(f"--output: {path} is the scenario {args.file} too")
    if place_of(path) in map(place_of, files_of(args.file)):
        raise InputError(f"--output: {path} is a file of {args.file} too")
    with place_for("--output", path) as place:
        yield place


@contextmanager
def _bar(budget: int | None) -> Iterator[Callable[[int], object]]:
    """A bar on stderr for what takes longer than two seconds, where somebody watches."""
    from tqdm import tqdm

    with tqdm(
        total=budget,
        delay=DELAY,
        disable=None,
        leave=False,
        desc="search",
        unit="ev",
        file=sys.stderr,
    ) as bar:
        yield lambda count: bar.update(count - bar.n)


def _text(result: Result, confirmed: bool) -> str:
    told = result.provenance
    lines = [f"{told['method']}: step time {_seconds(result.objectives['step_time_s'])}"]
    lines += [
        f"{name}: {value:.6g}" for name, value in result.objectives.items() if name != "step_time_s"
    ]
    lines.append(_fit(result))
    first = result.points[0]
    lines.append(f"first placement tried: {_seconds(first.step_ps / 1e12)}")
    evaluations = told["evaluations"]
    counted = (
        f"{evaluations:,} evaluation{'s' * (evaluations != 1)}, {told['cpu_seconds']:.2f} "
        "CPU seconds"
    )
    ends = {
        "done": "ended by itself",
        "budget": "budget spent",
        "time": "time is up",
        "interrupted": "interrupted",
    }
    lines.append(f"{counted}; {ends[told['ended']]}; seed {told['seed']}")
    if "bound_s" in result.details:
        lines.append(_proved(result.details))
    if confirmed:
        lines.append("confirmed by the reference engine and the checker")
    return "\n".join(lines)


def _fit(result: Result) -> str:
    from ..units import format_bytes

    peaks = max(result.cost.peaks, default=0)
    if result.cost.feasible:
        return f"fits; the fullest device holds {format_bytes(peaks)} at its peak"
    over = result.cost.memory_excess
    return f"does not fit: {over:,} bytes ({format_bytes(over)}) over; nothing that fits was found"


def _proved(details: Mapping[str, Any]) -> str:
    """What branch and bound showed."""
    if details["exact"]:
        return f"proved to be the best of {details['space']:,} strategies"
    bound = details["bound_s"]
    return (
        f"not proved to be the best: no strategy is under {_seconds(bound)}"
        if bound
        else "nothing is proved yet"
    )


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.6g} {unit}"
    return f"{value * 1e9:.6g} ns"
