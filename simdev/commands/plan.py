"""``simdev plan MODEL --cluster NAME --global-batch N``: the best ways to spread its step.

``search/plan`` makes the plans and the columns of their table (``outcome.py``),
``search/plan/graphs`` the plans of a graph of ops; ``report/page/answers.py`` makes a page of the
answer. Fields that may be tried are in ``search/plan/space.py`` and need no option here.
"""

from __future__ import annotations

import json
import os
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..ground.errors import InputError, printable, refuse
from ..ground.units import format_bytes, format_capacity, format_number, format_seconds, parse_bytes
from .options import (
    DATASHEET_HELP,
    DONE,
    DRAW_OPTIONS,
    INFEASIBLE,
    flag,
    require_drawn,
    require_price,
    whole_numbers,
    with_flags,
)
from .outputs import drawing, output_files, printed_first, tell, watched, writing
from .report import ANSWER

if TYPE_CHECKING:
    import pandas as pd

    from ..formats.launch import Launch
    from ..search.plan import Plans

# The answer of simdev plan as JSON, and the folder of --output: a scenario for each plan, the
# answer, and its page.

PAGE = "plans.html"
PLAN_FILE = re.compile(rf"\d{{2,}}\.json|{re.escape(ANSWER)}|{re.escape(PAGE)}")


def answer_text(answer: Mapping[str, Any], folder: str = "") -> str:
    """The answer as JSON; the scenarios of its ``plans`` name their files from ``folder``."""
    plans = [row | {"scenario": _seen_from(folder, row.get("scenario"))} for row in answer["plans"]]
    return json.dumps({**answer, "plans": plans}, indent=1, default=str)


def _seen_from(folder: str, scenario: Any) -> Any:
    from ..files.scenario import moved

    return None if scenario is None else moved(scenario, "", folder)


def require_plan_folder(folder: str) -> None:
    """Raises InputError, before the search, for a folder that cannot be made; leaves nothing
    behind.
    """
    from ..files.writing import require_folder

    with writing(folder):
        require_folder(folder, PLAN_FILE)


def write_plans(answer: Mapping[str, Any], folder: str) -> None:
    """Write a folder at once: a scenario for each plan, named by its place (``01.json``), the
    answer as ``--json`` prints it, and its page. The files of an earlier answer move into a folder
    of their own inside. Raises InputError.
    """
    from ..files.writing import new_folder, write_text
    from ..report.page import answers_data, page

    text = answer_text(answer, folder) + "\n"
    shown = answers_data(json.loads(text), ANSWER)
    assert shown is not None
    files = {ANSWER: text, PAGE: page(shown)}
    scenarios = filter(None, (row.get("scenario") for row in answer["plans"]))
    for number, scenario in enumerate(scenarios, 1):
        moved = _seen_from(folder, scenario)
        files[f"{number:02}.json"] = json.dumps(moved, indent=1, default=str) + "\n"
    there = _names(folder)
    with writing(folder), new_folder(folder, PLAN_FILE) as made:
        for name, content in files.items():
            write_text(os.path.join(made, name), content)
    for name in sorted(_names(folder) - there - files.keys()):
        tell(f"plans of an earlier answer are in {os.path.join(folder, name)} now")


def _names(folder: str) -> set[str]:
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()


LAUNCHES = {"megatron": (".args", ".txt"), "torchtitan": (".toml",), "deepspeed": (".json",)}
"""The endings of a launch configuration's file, by the framework that reads it."""
HELP = "the best ways to spread a large model over a cluster, at a fixed global batch"
DESCRIPTION = (
    "Tries every legal combination of dp, cp, tp, pp, ep, etp (1 or tp), microbatch, schedule, "
    "chunks, ZeRO and recomputation: the plans that fit, the fastest first. Exits 1 where none "
    "fits."
)
OPTIONS = (
    ("model", "MODEL", "like llama3-70b, or the config.json of a release; or a graph, like gnmt"),
    ("--cluster", "NAME", "a preset or a file", {"required": True}),
    ("--nodes", "N,N", "machines, of a preset; each count is tried", {"default": None}),
    ("--global-batch", "N", "samples of a step", {"required": True}),
    ("--length", "N", "tokens of a sample (default: the model's)"),
    (
        "--set",
        "FIELD=V,V",
        "values of a field of the pipeline, like tp=4,8 or schedule=1F1B,ZB-H1 or flash=true; what "
        "is not set is tried in every legal way",
        {"action": "append", "default": []},
    ),
    ("--top", "N", "so many answers, of other degrees each (default 10)", {"default": 10}),
    ("--price", "$", "of an hour of each device: adds what a million tokens cost"),
    ("--front", "", "the whole front of step time, memory and devices, too; takes longer"),
    ("--alike", "", "every plan is a row: those of equal degrees, and within 1 %% of another"),
    ("-j --jobs", "N", "so many simulated at once, -1 on all cores (default 1)", {"default": 1}),
    ("--journal", "FILE", "where simulated plans and bounds are kept for the next run"),
    (
        "-o --output",
        "DIR",
        "a folder for a scenario of each plan, and plans.html, a page of all",
    ),
    (
        "--export",
        "FRAMEWORK",
        "print the best plan as a launch configuration of megatron, torchtitan or deepspeed, in "
        "place of the table",
        {"choices": tuple(LAUNCHES)},
    ),
    (
        "--export-file",
        "OUT",
        "where --export writes, and the table is printed (.args or .txt, .toml, .json)",
    ),
    *DRAW_OPTIONS,
    ("--check", "", "simulate the best plan on all devices, too"),
    ("--datasheet", "", DATASHEET_HELP),
    ("--graph", "", "the planners of the papers over the model's graph of ops, too"),
    ("--seconds", "S", "of each of these planners (default 30)"),
    ("--json", "", "print the plans as JSON"),
)
REASONS_SHOWN = 6
DRAWN = ("step p10 to p90", "memory p10 to p90", "beats #1")  # columns, where errors were drawn
TIE = "="  # marks a plan that the error does not separate from the best
# Arguments of ``plan`` as messages name them, and their options here.
FLAGS = {name: flag(name) for name in ("global_batch", "top", "nodes")}
FLAGS |= {"n_jobs": "--jobs", "cluster.nodes": "--nodes", "graph.length": "--length"}


def run(args: Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    with with_flags(FLAGS):
        if args.output is not None:
            require_plan_folder(args.output)
        return _run_graph(args) if _is_graph(args) else _run_sizes(args)


def _run_sizes(args: Namespace) -> int:
    from ..search.plan import choices_of, confirm, plans_of, question_of

    if args.seconds is not None:
        raise InputError("--seconds: goes with a graph (--graph); of sizes all plans are tried")
    require_price(args.price)
    require_drawn(args)
    nodes = whole_numbers("--nodes", args.nodes)
    parts = args.model, args.cluster, args.global_batch, nodes, args.length
    rows: dict[str, Any] = {"profile": []} if args.datasheet else {}
    question = question_of(*parts, rows, args.price)
    options = args.front, args.alike, args.jobs, args.journal, None, args.draws, args.seed, drawing
    choices = choices_of(_choices(args.set))
    with _export_file(args) as file:
        plans = plans_of(question, choices, args.top, *options)
        launch, answer = _launch(args, plans), _answer(plans)
        with printed_first(_printed(args, plans, answer, launch)):
            if args.output is not None:
                write_plans(answer, args.output)
            if file is not None:
                _write_launch(file, launch)
    if args.check and plans.best:
        first = plans.answers[0].shown
        tell(confirm(question, first.plan, first.row))
    return DONE if plans.best else INFEASIBLE


def _printed(
    args: Namespace, plans: Plans, answer: Mapping[str, Any], launch: Launch | None
) -> str:
    if launch is not None and args.export_file is None:
        return launch.text.rstrip("\n")
    return answer_text(answer) if args.json else "\n".join(_lines(plans))


# The best plan as a launch configuration.


@contextmanager
def _export_file(args: Namespace) -> Iterator[str | None]:
    """The file to fill with the exported configuration; None without one. Raises InputError."""
    if args.export is None and args.export_file is not None:
        raise InputError("--export-file: goes with --export")
    if args.export is not None and args.export_file is None and args.json:
        raise InputError("--export: prints a configuration in place of --json; tell --export-file")
    endings = {} if args.export is None else {"export_file": LAUNCHES[args.export]}
    with output_files(args, endings, _inputs(args)) as out:
        yield out.get("export_file")


def _inputs(args: Namespace) -> Iterator[tuple[str, str]]:
    """The files that the configuration may not replace."""
    for name in ("model", "cluster", "journal"):
        if getattr(args, name) is not None:
            yield getattr(args, name), f"the {name}"


def _launch(args: Namespace, plans: Plans) -> Launch | None:
    """The configuration of the best plan, where ``--export`` is given and a plan fits. Raises
    InputError.
    """
    if args.export is None or not plans.best:
        return None
    from ..formats.launch import launch_of
    from ..nouns.strategy import degrees_over_one

    try:
        best = plans.answers[0].shown.plan
        launch = launch_of(args.export, plans.question.model, best.parallelism)
    except InputError as error:
        raise InputError(f"--export: {problem}" for problem in error.problems) from None
    groups = {"dp_replicate": best.parallelism.dp_replicate}
    degrees = ", ".join(degrees_over_one(best.parallelism.degrees | groups)) or "one device"
    tell(f"{args.export}: the best plan, {degrees}")
    tell(*(f"{args.export}: {note}" for note in launch.notes))
    return launch


def _write_launch(file: str, launch: Launch | None) -> None:
    """Fills the file with the configuration; removes it where no plan fits."""
    from ..files.writing import write_text

    if launch is None:
        os.unlink(file)
    else:
        write_text(file, launch.text)


def _run_graph(args: Namespace) -> int:
    by_sizes = {"--front": args.front, "--alike": args.alike, "--check": args.check}
    by_sizes |= {"--datasheet": args.datasheet, "--draws": args.draws}
    for name in ("journal", "export", "export_file"):
        by_sizes[flag(name)] = getattr(args, name) is not None
    refuse(
        f"{name}: goes with a model by its sizes; {printable(args.model)} is a graph here"
        for name, is_set in by_sizes.items()
        if is_set
    )
    frame = _graph_plans(args, whole_numbers("--nodes", args.nodes))
    answer = _graph_answer(frame)
    with printed_first(answer_text(answer) if args.json else "\n".join(_graph_lines(frame))):
        if args.output is not None:
            write_plans(answer, args.output)
    return _code_of(frame)


def _choices(texts: Sequence[str]) -> dict[str, list[Any]]:
    """The values to try, by field. A value is JSON if it parses as such, else text. Raises
    InputError.
    """
    choices: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise InputError(f"--set {text}: must be FIELD=VALUE,VALUE,...")
        if name in choices:
            raise InputError(f"--set {name}: is set twice")
        choices[name] = [_value(name, value.strip()) for value in values.split(",")]
    return choices


def _value(name: str, text: str) -> Any:
    if name in ("offload", "recompute_modules"):  # lists; commas already separate plans
        return [part for part in text.split("+") if part]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _answer(plans: Plans) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    rows = [
        {name: _plain(value) for name, value in row.items()}
        for row in plans.frame.to_dict("records")
    ]
    return {"counts": plans.summary, "plans": rows}


def _plain(value: Any) -> Any:
    """The value for JSON: None in place of NaN and of pandas' missing value."""
    return None if value != value or type(value).__name__ == "NAType" else value


def _lines(plans: Plans) -> Iterator[str]:
    yield from _head(plans)
    if not plans.best:
        return
    from ..report.measures.uncertainty import how_sure
    from ..report.table import table_text

    yield table_text(_table(plans), width=None)
    if plans.draws:
        order = plans.stability
        yield how_sure(order.beats.tolist(), order.first[0], order.kendall)


def _head(plans: Plans) -> Iterator[str]:
    """Lines on the size of the space, and the numbers of plans that were excluded or simulated."""
    counts = plans.counts
    question = plans.question
    tokens = question.global_batch * question.model.length
    yield (
        f"{printable(question.model.name)}: {question.global_batch:,} samples of "
        f"{question.model.length:,} tokens a step ({tokens:,} in all)"
    )
    proved = counts.unfit + counts.slower
    yield (
        f"{counts.legal:,} plans: {counts.unfit:,} proved not to fit, {counts.slower:,} proved "
        f"slower, {counts.simulated:,} simulated ({counts.overflowing:,} of them do not fit); "
        f"{plans.seconds:.1f} s, {(proved + counts.simulated) / plans.seconds:,.0f} plans/s"
    )
    yield from _reasons("illegal", counts.illegal)
    yield from _reasons("refused", counts.refused)
    if plans.proved:
        assert plans.least_s is not None
        yield (
            f"no plan of these that fits takes less than {format_seconds(plans.least_s)}: proved "
            "by simulation and bounds, under this model of the machine"
        )
    yield str(plans.published)
    if plans.best and counts.refused:
        yield "  what is refused could be faster than the plans below"
    if plans.best:
        yield f"op times of the best: {plans.frame['op_times'][0]}"
    else:
        if counts.unfit + counts.simulated:
            yield f"No plan fits; each needs {format_bytes(counts.least_bytes or 0)} or more."
        else:
            yield "No plan could be simulated."


def _reasons(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    if not counts:
        return
    yield f"{sum(counts.values()):,} combinations are {title}:"
    most = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    for reason, number in most[:REASONS_SHOWN]:
        yield f"  {printable(reason)}: {number:,}"
    if len(most) > REASONS_SHOWN:
        rest = sum(number for _, number in most[REASONS_SHOWN:])
        yield f"  {len(most) - REASONS_SHOWN:,} more reasons: {rest:,}"


def _shown(plans: Plans) -> Iterator[str]:
    """The fields that become columns: degrees above 1, and fields that differ between plans."""
    frame = plans.frame
    if len(plans.question.clusters) > 1:
        yield "devices"
    yield from (name for name in ("cp", "ep") if frame[name].max() > 1)
    yield from (name for name in ("etp", "dp_replicate") if name in frame)
    yield from ("dp", "tp", "pp", "microbatch", "microbatches", "schedule", "zero", "recompute")
    if frame["cp"].max() > 1:
        yield "context"
    others = dict.fromkeys(name for s in plans.best for name, _ in s.plan.setup.others)
    yield from (name for name in others if frame[name].map(str).nunique() > 1)


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "+".join(map(str, value)) or "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _capacity(plans: Plans) -> str:
    """The capacity of devices, to compare peaks with; "" where some devices have no limit."""
    devices = [device for c in plans.question.clusters for device in c.devices if device.runs_ops]
    sizes = {parse_bytes(d.memory) for d in devices if d.memory is not None}
    is_limited = all(device.memory is not None for device in devices)
    names = " or ".join(map(format_capacity, sorted(sizes)))
    return f"; a device has {names}" if is_limited else ""


def _table(plans: Plans) -> Any:
    """The table of plans for people."""
    from ..report.table import BYTES, NUMBER, SHARE, TEXT, TIME, Table

    names, has_price = list(_shown(plans)), plans.question.price is not None
    columns = {"#": NUMBER} | dict.fromkeys(names, TEXT)
    columns |= {"step": TIME, "tokens/s": TEXT, "MFU": SHARE, "memory": BYTES}
    columns |= {"bubble": SHARE, "exposed": SHARE}
    columns |= dict.fromkeys(["within 1 %"] * plans.folds + ["$/M tokens"] * has_price, TEXT)
    columns |= dict.fromkeys(DRAWN if plans.draws else (), TEXT)
    columns |= {"tie": TEXT, "slower than #1 by": TEXT}
    rows = []
    for number, row in enumerate(plans.frame.to_dict("records"), 1):
        row["schedule"] += f" x {row['chunks']}" * (row["chunks"] > 1)
        cells = [_cell(row[name]) for name in names]
        figures = row["step_time_ps"], f"{row['tokens_per_s']:,.0f}", row["mfu"], row["peak_bytes"]
        shares = row["bubble"], row["exposed_communication"]
        folded = [f"+{row['folded']}"] * plans.folds
        price = [f"{row['cost_per_million_tokens']:.4g}"] if has_price else []
        tie = TIE if row["tied"] and number > 1 else ""
        drawn = _drawn(row) if plans.draws else ()
        rows.append((number, *cells, *figures, *shares, *folded, *price, *drawn, tie, row["why"]))
    front = " and the front of step time, memory and devices" * bool(plans.front)
    title, legend = f"The best plans{front}, the fastest first", "\n  ".join(_legend(plans))
    return Table(title, columns, tuple(rows), legend, shown=len(rows))


def _drawn(row: Mapping[Any, Any]) -> tuple[str, ...]:
    """The cells of DRAWN."""
    times, sizes = (
        " to ".join(dict.fromkeys(text(row[name.format(part)]) for part in (10, 90)))
        for name, text in (("step_p{}_s", format_seconds), ("peak_p{}_bytes", format_bytes))
    )
    return times, sizes, f"{row['beats_best']:.0%}"


def _legend(plans: Plans) -> Iterator[str]:
    """Lines below the table that explain its rows and columns."""
    from ..nouns.draws import TIE_MEANING
    from ..search.plan.searching import degrees

    if len({degrees(scored.plan.setup) for scored in plans.best}) == len(plans.best) > 1:
        yield "rows: of all plans with the same degrees the best one"
    if plans.folds:
        yield "within 1 %: how many others are as fast, up to 1 %; the row is the simplest of them"
    if plans.draws:
        draws = plans.draws[0]
        count = f"{len(draws):,} draws of the errors of costs (seed {draws.seed})"
        yield f"p10 to p90: 8 of 10 of {count}"
        yield f"beats #1: its share of the draws; tie {TIE}: {TIE_MEANING}"
    elif sum(plans.frame["tied"]) > 1:
        error, _, pairs = str(plans.layouts).partition(", ")
        yield f"tie {TIE}: slower than #1 by no more than {error},"
        yield f"  {pairs}; an error that all layouts share cancels"
    yield f"memory: the peak of the fullest device{_capacity(plans)}"
    peaks = " or ".join(dict.fromkeys(plans.frame["peak_dtype"]))
    yield f"MFU: the share of the {peaks} peak that the FLOPs of the model need"
    yield "bubble, exposed: the shares of the step in which devices are idle, or only communicate"


# The plans of papers' planners for a model's graph.

GRAPH_COST = "cost_per_million_samples"


def _is_graph(args: Namespace) -> bool:
    """Whether to plan a graph: ``--graph`` is given, or the model has only a graph."""
    from ..search.plan.graphs import is_graph_alone

    return bool(args.graph) or is_graph_alone(args.model)


def _graph_plans(args: Namespace, nodes: Sequence[int] | None) -> pd.DataFrame:
    """The table of all methods. Raises InputError."""
    from ..search.plan.graphs import SECONDS, plan_graph

    if args.set:
        raise InputError(f"--set: goes with a model by its sizes; {args.model} is a graph here")
    if nodes is not None and len(nodes) > 1:
        raise InputError("--nodes: a graph is planned on one cluster; give one number")
    parts: dict[str, Any] = {} if args.price is None else {"options": {"price": args.price}}

    seconds = SECONDS if args.seconds is None else args.seconds
    count = None if nodes is None else nodes[0]
    return plan_graph(
        args.model, args.cluster, args.global_batch, count, args.length, seconds=seconds,
        watch=watched("plan"), **parts,
    )  # fmt: skip


def _code_of(frame: pd.DataFrame) -> int:
    """The exit code: whether anything fits."""
    return DONE if any(fits is True for fits in frame["feasible"]) else INFEASIBLE


def _graph_answer(frame: pd.DataFrame) -> dict[str, Any]:
    """The object that ``--json`` prints: rows, with None in place of figures that are missing."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return {"plans": rows}


def _graph_lines(frame: pd.DataFrame) -> Iterator[str]:
    """The table of methods for a terminal, a row each."""
    from ..report.table import BYTES, NUMBER, TEXT, TIME, Table, table_text

    columns = {"method": TEXT, "step": TIME, "samples/s": TEXT, "memory": BYTES, "fits": TEXT}
    has_price = bool(frame[GRAPH_COST].notna().any())
    columns |= {"$/M samples": TEXT} if has_price else {}
    columns |= {"devices": NUMBER, "evaluations": NUMBER, "seconds": NUMBER, "note": TEXT}
    rows = [tuple(_graph_cells(row, has_price)) for row in frame.to_dict("records")]
    title = "By what is trained a second, at the same global batch"
    yield table_text(Table(title, columns, tuple(rows), shown=len(rows)), width=None)


def _graph_cells(row: Mapping[Any, Any], has_price: bool) -> Iterator[Any]:
    is_there = row["feasible"] is True or row["feasible"] is False

    def number(name: str, form: str) -> str:
        return f"{row[name]:{form}}" if is_there else "-"

    yield row["method"]
    yield int(row["step_time_ps"]) if is_there else None
    yield format_number(row["samples_per_s"]) if is_there else "-"
    yield int(row["peak_bytes"]) if is_there else None
    yield {True: "yes", False: "NO"}.get(row["feasible"], "-")
    if has_price:
        yield number(GRAPH_COST, ".4g")
    yield from (number(name, ",.0f") for name in ("devices", "evaluations"))
    yield f"{row['seconds']:.1f}" if row["seconds"] == row["seconds"] else "-"
    yield printable(row["note"])
