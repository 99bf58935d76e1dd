"""``simdev pipeline``: a pipeline from the times of its stages alone, without a model."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .codes import DONE, FAILED_CHECK
from .outputs import PICTURES, check_names, place_of, places_for, save_figure
from .traces import is_faulty

if TYPE_CHECKING:
    from ..schedules import Schedule, StageTimes

OUTPUTS = {"gantt": PICTURES, "save_csv": (".csv",), "save": (".json", ".json.gz")}


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "pipeline",
        help=(
            "simulate a pipeline schedule from the times of its stages: step time, bubble, "
            "live activations"
        ),
        description="Simulate a pipeline from what a rank needs for one microbatch. A single time "
        "or size is that of a "
        "rank, and its stages share it; a list like 3ms,5ms,4ms has one value for each stage. "
        "Schedules: GPipe, 1F1B, Interleaved1F1B, ZB-H1, ZB-H2, InterleavedZeroBubble, "
        "PipeDream, or your own (--csv).",
        allow_abbrev=False,
    )
    found.add_argument(
        "--stages",
        type=int,
        metavar="P",
        help="ranks (devices), each with a stage, or with --chunks",
    )
    found.add_argument("--microbatches", type=int, metavar="M", help="microbatches in a step")
    found.add_argument("--schedule", metavar="NAME", help="default: 1F1B")
    found.add_argument(
        "--chunks", type=int, metavar="V", help="stages a rank, of interleaved schedules"
    )
    found.add_argument(
        "--csv", metavar="FILE", help="a table of your own, a line a rank, as PyTorch writes it"
    )
    found.add_argument("--forward", required=True, metavar="TIME", help="of a forward, like 18.5ms")
    found.add_argument(
        "--backward", required=True, metavar="TIME", help="of the gradient of the input"
    )
    found.add_argument(
        "--weight", default="0", metavar="TIME", help="of the gradient of the weights (default 0)"
    )
    found.add_argument(
        "--comm",
        default="0",
        metavar="TIME",
        help="latency between neighbouring stages (default 0)",
    )
    found.add_argument(
        "--activation",
        default="0",
        metavar="SIZE",
        help="bytes a microbatch leaves on a rank, like 2GB",
    )
    found.add_argument(
        "--kept", metavar="SIZE", help="what of it the gradient of the weights needs (default: all)"
    )
    found.add_argument(
        "--parameters", default="0", metavar="SIZE", help="bytes of the weights of a rank"
    )
    found.add_argument(
        "--engine", choices=("auto", "simpy", "compiled"), default="auto", help="default: auto"
    )
    found.add_argument("--gantt", metavar="OUT", help="draw the timeline (.png, .svg or .pdf)")
    found.add_argument("--save-csv", metavar="OUT", help="write the schedule as a table (.csv)")
    found.add_argument(
        "--save", metavar="OUT", help="save the run, for simdev check (.json or .json.gz)"
    )
    found.add_argument("--json", action="store_true", help="print the report as JSON")
    found.add_argument(
        "--check", action="store_true", help="judge the result by the independent checker too"
    )
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    from ..analysis.pipeline import analyze_pipeline
    from ..engine import simulate
    from ..lowering.pipeline import pipeline_task_graph

    with _outputs(args) as places:
        schedule = _schedule(args)
        trace = simulate(pipeline_task_graph(schedule, _times(args, schedule)), args.engine)
        report = analyze_pipeline(schedule, trace)
        code = FAILED_CHECK if args.check and is_faulty(trace) else DONE
        if "save_csv" in places:
            _write_table(schedule, places["save_csv"])
        if "save" in places:
            from ..files import write_run

            write_run(trace, places["save"])
        if "gantt" in places:
            from ..plot.pipeline import pipeline_figure

            save_figure(pipeline_figure(report, trace), places["gantt"])
    print(json.dumps(report.to_json(), indent=1, allow_nan=False) if args.json else report)
    return code


def _schedule(args: argparse.Namespace) -> Schedule:
    """The table that was named or given. Raises InputError."""
    from ..schedules import named_schedule

    if args.csv is not None:
        return _own_schedule(args)
    absent = [
        f"--{name}: is needed, or --csv"
        for name in ("stages", "microbatches")
        if getattr(args, name) is None
    ]
    if absent:
        raise InputError(absent)
    chunks = 1 if args.chunks is None else args.chunks
    with _told_of_options():
        return named_schedule(args.schedule or "1F1B", args.stages, args.microbatches, chunks)


def _own_schedule(args: argparse.Namespace) -> Schedule:
    from ..files.reading import label, read_text
    from ..schedules import read_csv

    if args.schedule is not None:
        raise InputError("--schedule: the table of --csv is the schedule; give one of them")
    name = os.path.splitext(os.path.basename(args.csv))[0] if args.csv != "-" else "custom"
    try:
        schedule = read_csv(read_text(args.csv), name)
    except InputError as error:
        raise error.within(label(args.csv)) from None
    shape = {
        "stages": schedule.ranks,
        "microbatches": schedule.microbatches,
        "chunks": max(schedule.chunks),
    }
    what = {"stages": "ranks", "microbatches": "microbatches", "chunks": "stages a rank"}
    wrong = [
        f"--{key}: is {getattr(args, key)}, but {args.csv} has {count} {what[key]}"
        for key, count in shape.items()
        if getattr(args, key) not in (None, count)
    ]
    if wrong:
        raise InputError(wrong)
    return schedule


def _times(args: argparse.Namespace, schedule: Schedule) -> StageTimes:
    from ..schedules import stage_times

    with _told_of_options():
        return stage_times(
            schedule,
            *(_listed(getattr(args, name)) for name in ("forward", "backward", "weight", "comm")),
            activation=_listed(args.activation),
            kept=None if args.kept is None else _listed(args.kept),
            parameters=_listed(args.parameters),
        )


def _listed(text: str) -> str | Sequence[str]:
    return text.split(",") if "," in text else text


@contextmanager
def _told_of_options() -> Iterator[None]:
    """Problems inside are told of the options that caused them."""
    try:
        yield
    except InputError as error:
        raise InputError([f"--{problem}" for problem in error.problems]) from None


def _write_table(schedule: Schedule, place: str) -> None:
    from ..schedules import aligned, schedule_csv

    with open(place, "w", encoding="utf-8", newline="") as file:
        file.write(schedule_csv(aligned(schedule)))


@contextmanager
def _outputs(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Option -> the temporary file to fill, which takes its place at the end.

    Raises InputError before any work.
    """
    wanted = {name: getattr(args, name) for name in OUTPUTS if getattr(args, name) is not None}
    check_names(
        wanted, OUTPUTS, {} if args.csv is None else {place_of(args.csv): f"the table {args.csv}"}
    )
    with places_for(wanted) as places:
        yield places
