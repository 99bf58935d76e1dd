"""``simdev capture SCRIPT --cluster NAME``: the step of a distributed PyTorch script.

``measure/ranks`` captures the script; ``report/advice.py`` simulates changes.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..ground.errors import InputError, prefixed
from ..ground.jobs import uncollected
from ..ground.units import PS_PER_SECOND, format_bytes, format_number
from .options import (
    DATASHEET_HELP,
    DONE,
    INFEASIBLE,
    REPORT_OPTION,
    cluster_value,
    flag,
    whole_numbers,
    with_flags,
)
from .outputs import JSON, json_text, output_files, printed_first, progress_bar, tell

if TYPE_CHECKING:
    from ..report import Report
    from ..report.whatif import WhatIf

HELP = "simulate the step of a distributed PyTorch script as it is, without a GPU"
DESCRIPTION = (
    "Runs a training script on fake tensors, once for each rank that differs, in a world that is "
    "not there, and simulates its step: simdev capture train.py --cluster dgx-h100 --world 16 -- "
    "--lr 0.1. What stands behind -- is for the script. Exits 1 where the step does not fit."
)
PASSES_ON = True
"""The arguments behind ``--`` are for the script: they are ``args.passed_on``."""
OPTIONS = (
    ("script", "SCRIPT", "the script, as torchrun takes it"),
    ("--cluster", "NAME", "a preset or a file", {"required": True}),
    ("--world", "N,N", "ranks (default: all GPUs of the cluster); each number is captured anew"),
    ("--rank", "N,N", "those to capture (default: those that differ are found)"),
    ("--compare-all", "", "look for those that differ among all ranks, each of which then runs"),
    ("--per-node", "N", "ranks of a node (default: its GPUs)"),
    ("--nodes", "N", "machines, of a preset"),
    ("--gpus", "N", "so many GPUs of a preset's machines, on the fewest without --nodes"),
    ("--profile", "FILE", "measured rows (again for more; default: shipped)", {"action": "append"}),
    ("--datasheet", "", DATASHEET_HELP.replace("layers", "ops")),
    (
        "--host",
        "MODE",
        "of an accelerator: eager (default) dispatches op after op; graph; none",
        {"choices": ("eager", "graph", "none")},
    ),
    ("--tokens", "N", "of a rank and step: adds tokens/s"),
    (
        "--what-if",
        "NAME=VALUE",
        "what another setting of the script's wrappers would bring, captured anew: bucket_cap_mb "
        "or gradient_as_bucket_view of DDP, reshard_after_forward or forward_prefetch (so many "
        "modules) of FSDP2 (again for more)",
        {"action": "append", "default": []},
    ),
    ("--no-advice", "", "leave out what changes of the machine would bring"),
    ("-o --output", "OUT", "write the scenario (.json or .json.gz)"),
    REPORT_OPTION,
)
LISTED = 8
"""The most ranks that a line lists."""
FLAGS = {name: flag(name) for name in ("world", "per_node", "cluster", "nodes", "gpus")}


def run(args: Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    from ..files import read_profile

    worlds = whole_numbers("--world", args.world) or []
    for name in ("output", "what_if") if len(worlds) > 1 else ():
        if getattr(args, name):
            raise InputError(f"{flag(name)}: goes with one --world, got {len(worlds)}")
    if args.rank and args.compare_all:
        raise InputError("--compare-all: finds the ranks to capture, which --rank names")
    if args.tokens is not None and args.tokens < 1:
        raise InputError(f"--tokens: must be at least 1, got {args.tokens}")
    # Profiles are read first, so that errors show before the slow capture.
    for path in args.profile or ():
        read_profile(path)
    inputs = [(args.script, "the script")]
    with output_files(args, {"output": JSON}, inputs) as out, uncollected():
        if len(worlds) > 1:
            return _sweep(args, worlds)
        return _single(args, worlds[0] if worlds else None, out.get("output"))


def _single(args: Namespace, world: int | None, place: str | None) -> int:
    from ..files import write_text
    from ..measure import parse_setting
    from ..report.advice import change

    with prefixed("--what-if: "):
        settings = {text: dict([parse_setting(text)]) for text in args.what_if}
    document = _document(args, world)
    provenance = document["provenance"]
    tell(*provenance["notes"])
    report = _report(document)
    # The script is captured anew under each setting.
    changed = {text: _report(_document(args, world, settings[text])) for text in settings}
    steps = {f"{text}, captured anew": changed[text].step_ps for text in settings}
    advice = () if args.no_advice else _advice(report)
    advice = [*advice, *(change(name, step_ps, report.step_ps) for name, step_ps in steps.items())]
    with printed_first(_answer(args, report, advice, provenance)):
        if place is not None:
            write_text(place, _text(document, os.path.dirname(args.output)))
    return DONE if report.feasible else INFEASIBLE


def _document(
    args: Namespace, world: int | None, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The scenario of the script with ``world`` ranks and other settings of its wrappers. Raises
    InputError.
    """
    from ..measure import capture_ranks

    cluster = cluster_value(args.cluster, args.nodes, args.gpus)
    ranks = whole_numbers("--rank", args.rank) or ()
    bar_format = "{desc}: {n_fmt} ranks, {elapsed}"
    with with_flags(FLAGS), progress_bar("capture", bar_format=bar_format) as bar:
        captured = capture_ranks(
            args.script, world, ranks, cluster=cluster, arguments=args.passed_on,
            per_node=args.per_node, settings=settings, progress=lambda _: bar.update(),
            compare_all=args.compare_all,
        )  # fmt: skip
        rows = [] if args.datasheet else args.profile
        options = {} if args.tokens is None else {"tokens": args.tokens * captured.world}
        name = os.path.basename(args.script)
        return captured.document(cluster, rows, host=args.host, name=name, options=options)


def _report(document: Mapping[str, Any]) -> Report:
    from ..execution.scenario import load_scenario
    from ..report import run as answer

    with progress_bar("simulate", bar_format="{desc} {elapsed}"):
        return answer(load_scenario(document, "none"))


def _advice(report: Report) -> Sequence[WhatIf]:
    from ..report.advice import advice

    assert report.outcome.scenario is not None
    with progress_bar("advice", bar_format="{desc} {elapsed}"):
        return advice(report, report.outcome.scenario)


def _answer(
    args: Namespace, report: Report, changes: Sequence[WhatIf], provenance: Mapping[str, Any]
) -> str:
    from ..report.advice import advice_table
    from ..report.measures.hosts import Idle
    from ..report.measures.modules import Modules
    from ..report.measures.usage import Memory
    from ..report.table import table_text

    if args.json:
        rows = [{"change": c.name, "step_time_s": c.step_ps / PS_PER_SECOND} for c in changes]
        return json_text(report.to_json() | {"advice": rows, "ranks": _ranks(provenance)})
    tables = [
        *report[Modules].tables(),
        *([advice_table(changes, report.step_ps)] if changes else []),
    ]
    texts = (table_text(table) for table in tables if table.rows)
    first = [*report.lines(), *_standing(provenance)]
    lines = "\n".join(first), "\n".join([*report[Memory].verdict(), _peaks(report)])
    return "\n\n".join([*lines, *texts, *report[Idle].notes()])


def _peaks(report: Report) -> str:
    """The largest peak of a device, and the bytes reserved by PyTorch's allocator, if replayed."""
    from ..report.measures.footprint import Footprint

    used = f"Largest peak: {format_bytes(max(memory.peak for memory in report.memories))}"
    footprint = report.get(Footprint)
    held = [use.reserved + use.outside for use in footprint.allocators] if footprint else []
    if not any(held):
        return f"{used}."
    return f"{used} in use, {format_bytes(max(held))} reserved by PyTorch's allocator."


def _ranks(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The captured ranks, the ranks compared with them, and the number of ranks never run."""
    ranks, compared = provenance["ranks"], provenance["compared"]
    assumed = provenance["world"] - len(ranks) - len(compared)
    return {"captured": ranks, "compared": compared, "assumed": assumed}


def _standing(provenance: Mapping[str, Any]) -> Iterator[str]:
    """A sentence on the ranks that stand for others, and on the ranks compared with them."""
    ranks, compared, assumed = _ranks(provenance).values()
    world = provenance["world"]
    if len(ranks) == world:
        return
    text = f"Ranks: {len(ranks):,} of {world:,} captured ({_listed(ranks)})"
    if compared:
        text += f"; {len(compared):,} compared with them do as they ({_listed(compared)})"
    if assumed:
        text += f"; that the other {assumed:,} do so too is assumed (--compare-all runs them)"
    yield f"{text}."


def _listed(ranks: Sequence[int]) -> str:
    shown = ranks if len(ranks) <= LISTED else [*ranks[: LISTED - 2], "...", ranks[-1]]
    return ", ".join(map(str, shown))


def _text(document: Mapping[str, Any], folder: str) -> str:
    """The text of the scenario's file in this folder."""
    from ..files.scenario import moved

    return json_text(moved(document, "", folder)) + "\n"


def _sweep(args: Namespace, worlds: Sequence[int]) -> int:
    """Captures the script in each world and prints a table, a row a world."""
    from ..report.table import BYTES, COUNT, SHARE, TEXT, TIME, Table, table_text

    reports, rows, ranks = [], [], []
    for world in worlds:
        document = _document(args, world)
        provenance = document["provenance"]
        ranks.append(_ranks(provenance))
        notes = *provenance["notes"], *_standing(provenance)
        tell(*(f"world {world}: {note}" for note in notes))
        report = _report(document)
        reports.append(report)
        peak = max(memory.peak for memory in report.memories)
        rate = report.throughput.tokens_per_s if report.throughput else None
        tokens = "-" if rate is None else format_number(rate)
        fits = "yes" if report.feasible else "NO"
        rows.append((world, report.step_ps, tokens, report.exposed, report.hosted, peak, fits))
    if args.json:
        every = zip(worlds, reports, ranks, strict=True)
        print(json_text([{"world": w} | r.to_json() | {"ranks": of} for w, r, of in every]))
    else:
        columns = {
            "ranks": COUNT, "step time": TIME, "tokens/s": TEXT, "exposed": SHARE,
            "for hosts": SHARE, "largest peak": BYTES, "fits": TEXT,
        }  # fmt: skip
        print(table_text(Table("Each world captured anew", columns, tuple(rows))))
    return DONE if all(report.feasible for report in reports) else INFEASIBLE
