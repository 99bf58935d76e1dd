"""``simdev pipeline``: a pipeline given only by the times of its stages, without a model.

Schedules and their times are in ``nouns/schedules``, the report's section in
``report/measures/pipeline.py``; DESCRIPTION names the schedules.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from ..ground.errors import InputError, prefixed, refuse, within
from .options import (
    CHECK_OPTION,
    DONE,
    ENGINE_CHOICE,
    FAILED_CHECK,
    GANTT_OPTION,
    LIMIT_OPTION,
    OF_LIMIT,
    REPORT_OPTION,
    SAVE_OPTION,
    require_limit,
    whole_numbers,
    with_flags,
)
from .outputs import JSON, PICTURES, is_faulty, json_text, output_files, printed_first, write_trace

if TYPE_CHECKING:
    from ..nouns.schedules import Schedule, StageTimes

OUTPUTS = {"gantt": PICTURES, "save_csv": (".csv",), "save": JSON}
HELP = (
    "simulate a pipeline schedule from the times of its stages: step time, bubble, live activations"
)
DESCRIPTION = (
    "Simulate a pipeline from what a rank needs for one microbatch. A single time or size is that "
    "of a rank, and its stages share it; a list like 3ms,5ms,4ms has one value for each stage, or "
    "for each replica. "
    "Schedules: GPipe, 1F1B, Interleaved1F1B, ZB-H1, ZB-H2, InterleavedZeroBubble, PipeDream, "
    "ZB-1p and ZB-2p (made from the times), DualPipe (bidirectional), DualPipeV, or your own "
    "(--csv)."
)
OPTIONS = (
    ("--stages", "N", "ranks (devices), each with a stage, or with --chunks; see --replicas"),
    ("--microbatches", "N", "microbatches in a step"),
    ("--schedule", "TEXT", "default: 1F1B"),
    ("--chunks", "N", "stages a rank, of interleaved schedules"),
    ("--replicas", "LIST", "ranks of each stage of PipeDream, in turn for microbatches, like 3,1"),
    ("--csv", "FILE", "a table of your own, a line a rank, as PyTorch writes it"),
    ("--forward", "TIME", "of a forward, like 18.5ms", {"required": True}),
    ("--backward", "TIME", "of the gradient of the input", {"required": True}),
    ("--weight", "TIME", "of the gradient of the weights (default 0)", {"default": "0"}),
    ("--overlapped", "TIME", "of a forward and a backward that overlap (default: one by one)"),
    ("--comm", "TIME", "latency between neighbouring stages (default 0)", {"default": "0"}),
    (
        "--wraparound",
        "",
        "which microbatches of a round wait where chunks go around to the first rank: every "
        "(default), or the first alone, as Zero Bubble's script rates interleaved 1F1B",
        {"action": "store", "choices": ("every", "first"), "default": "every"},
    ),
    ("--sync", "TIME", "of replicas' gradients, once each went backward", {"default": "0"}),
    ("--activation", "SIZE", "bytes a microbatch leaves on a rank, like 2GB", {"default": "0"}),
    ("--kept", "SIZE", "what of it the gradient of the weights needs (default: all)"),
    ("--parameters", "SIZE", "bytes of the weights of a rank", {"default": "0"}),
    ("--engine", "", "default: auto", ENGINE_CHOICE | {"default": "auto"}),
    GANTT_OPTION,
    ("--save-csv", "OUT", "write the schedule as a table (.csv)"),
    SAVE_OPTION,
    LIMIT_OPTION,
    REPORT_OPTION,
    CHECK_OPTION,
)


def run(args: Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    from ..execution.engine import simulate
    from ..execution.scenario import Outcome
    from ..files import write_text
    from ..lowering.pipeline import pipeline_task_graph
    from ..nouns.schedules import aligned, schedule_csv
    from ..report import analyze
    from ..report.figures import report_figure

    inputs = [] if args.csv is None else [(args.csv, f"the table {args.csv}")]
    with output_files(args, OUTPUTS, inputs) as out:
        schedule, times = _schedule(args)
        task_graph = pipeline_task_graph(schedule, times, wraparound=args.wraparound)
        trace = simulate(task_graph, args.engine)
        report = analyze(Outcome(trace, schedule=schedule))
        code = FAILED_CHECK if args.check and is_faulty(trace) else DONE
        section = report.pipeline
        assert section is not None
        answer = json_text(section.to_json()) if args.json else section
        with printed_first(answer):
            if "save_csv" in out:
                write_text(out["save_csv"], schedule_csv(aligned(schedule)))
            write_trace(trace, out, lambda: report_figure(report))
    return code


def _schedule(args: Namespace) -> tuple[Schedule, StageTimes]:
    """The schedule that was named or given as a table, with the times of its stages. Raises
    InputError.
    """
    from ..nouns.scale import scale_of_pipeline
    from ..nouns.schedules import (
        SEARCHED,
        check_sizes,
        full_name,
        named_schedule,
        searched_schedule,
    )

    if args.csv is not None:
        schedule = _csv_schedule(args)
        return schedule, _times(args, schedule)
    refuse(
        f"--{name}: is needed, or --csv"
        for name in ("stages", "microbatches")
        if getattr(args, name) is None
    )
    chunks = 1 if args.chunks is None else args.chunks
    limit = require_limit(args.limit)
    sizes = args.stages, args.microbatches, chunks
    with prefixed("--"):
        check_sizes(*sizes)
    # Checked before the schedule is made, which has as many actions as the step.
    scale = scale_of_pipeline(prod(sizes), args.weight not in ("0", ""))
    with with_flags(OF_LIMIT):
        scale.require(limit)
    replicas = whole_numbers("--replicas", args.replicas) or []
    with prefixed("--"):
        name = full_name(args.schedule or "1F1B")
        schedule = named_schedule(name, *sizes, replicas, shape=True)
    times = _times(args, schedule)
    if name in SEARCHED:
        schedule = searched_schedule(name, times, args.microbatches)
    return schedule, times


def _csv_schedule(args: Namespace) -> Schedule:
    from ..files.reading import label, read_text
    from ..nouns.schedules import read_csv

    if args.schedule is not None:
        raise InputError("--schedule: the table of --csv is the schedule; give one of them")
    if args.replicas is not None:
        raise InputError("--replicas: a table of --csv has none; --schedule PipeDream may")
    name = os.path.splitext(os.path.basename(args.csv))[0] if args.csv != "-" else "custom"
    with within(label(args.csv)):
        schedule = read_csv(read_text(args.csv), name)
    # Options that agree with the table are allowed; others contradict it.
    sizes = (
        ("stages", schedule.ranks, "ranks"),
        ("microbatches", schedule.microbatches, "microbatches"),
        ("chunks", max(schedule.chunks), "stages a rank"),
    )
    refuse(
        f"--{name}: is {getattr(args, name)}, but {args.csv} has {count} {noun}"
        for name, count, noun in sizes
        if getattr(args, name) not in (None, count)
    )
    return schedule


def _times(args: Namespace, schedule: Schedule) -> StageTimes:
    from ..nouns.schedules import stage_times

    with prefixed("--"):
        return stage_times(
            schedule,
            *(_listed(getattr(args, name)) for name in ("forward", "backward", "weight", "comm")),
            activation=_listed(args.activation),
            kept=None if args.kept is None else _listed(args.kept),
            parameters=_listed(args.parameters),
            sync=_listed(args.sync),
            overlapped=None if args.overlapped is None else _listed(args.overlapped),
        )


def _listed(text: str) -> str | Sequence[str]:
    return text.split(",") if "," in text else text
