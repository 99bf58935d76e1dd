"""``simdev compare A B``: two steps side by side, as text, JSON or a page.

Differences and their tables are made in ``report/page/step.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..ground.errors import InputError, printable
from .options import DONE, DRAW_OPTIONS, PRICE_OPTION, require_drawn, require_price
from .outputs import drawing, json_text, output_files, printed_first, tell
from .report import PAGE, page_inputs
from .traces import as_traced, files_of, is_traced

HELP = "tell two steps apart: scenarios, saved runs or traces of real ones"
DESCRIPTION = (
    "Compares two steps, each a scenario, a saved run or a real run's traces, part by part; parts "
    "are matched by name, the ops of traces by their kind and order."
)
OPTIONS = (
    (
        "first",
        "A",
        "a scenario (or an example's name), a saved run (JSON, may be gzipped; - is stdin), or the "
        "trace of torch.profiler, or the folder of those of all ranks",
    ),
    ("second", "B", "another one"),
    ("-o --output", "OUT", "write a page too, with both on one time axis (.html)"),
    PRICE_OPTION,
    *DRAW_OPTIONS,
    ("--json", "", "print the comparison as JSON (times in ps)"),
)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    from ..files import write_text
    from ..files.examples import scenario_path
    from ..report.page import compare_data, is_results, page

    require_price(args.price)
    require_drawn(args)
    files = [scenario_path(args.first), scenario_path(args.second)]
    if files == ["-", "-"]:
        raise InputError("A and B: only one of them can be stdin")
    for file in filter(is_results, files):
        raise InputError("is a table; compare takes scenarios and saved runs", file)
    with output_files(args, {"output": PAGE}, _inputs(files)) as out:
        first, second = _subjects(files, args)
        with printed_first(_json(first, second) if args.json else _text(first, second)):
            if "output" in out:
                write_text(out["output"], page(compare_data(first, second)))
    if args.output is not None:
        tell(f"page: {args.output}")
    return DONE


def _inputs(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(path, description) of the files that a page may not replace."""
    for file in files:
        if is_traced(file):
            yield from ((trace, "a trace") for trace in files_of(file))
        else:
            yield from page_inputs([file])


def _subjects(files: Sequence[str], args: argparse.Namespace) -> tuple[Any, Any]:
    from ..report.page import read_subject

    for file in filter(is_traced, files if args.draws else ()):
        raise InputError("draws: a trace tells no errors; give a scenario", file)
    drawn = args.draws, args.seed, drawing
    read = [
        None if is_traced(file) else read_subject(file, args.price, None, *drawn) for file in files
    ]
    # Traces have no modules, so their ops get the names of the other step's ops.
    first, second = (
        subject or as_traced(file, read[1 - i])
        for i, (file, subject) in enumerate(zip(files, read, strict=True))
    )
    # Files of the same name in two folders are shown by their paths.
    if first.name == second.name and files[0] != files[1]:
        return replace(first, name=files[0]), replace(second, name=files[1])
    return first, second


def _text(first: Any, second: Any) -> str:
    from ..report.page import compare_tables, reasons, verdict
    from ..report.table import table_text

    why = reasons(first.report, second.report)
    lines = [f"A: {first.name}", f"B: {second.name}", verdict(first, second), *why]
    parts = ["\n".join(map(printable, lines))]
    tables = compare_tables(first, second)
    return "\n\n".join([*parts, *(table_text(table) for table in tables if table.rows)])


def _json(first: Any, second: Any) -> str:
    from ..report.page import compare_tables, reasons, rivalry_json, verdict

    draws = first.report.draws, second.report.draws
    comparison = {
        "a": first.name,
        "b": second.name,
        "verdict": verdict(first, second),
        "reasons": list(reasons(first.report, second.report)),
        "sheets": [table.to_json() for table in compare_tables(first, second)],
    }
    if all(draws):
        comparison["draws"] = rivalry_json(*draws)
    return json_text(comparison)
