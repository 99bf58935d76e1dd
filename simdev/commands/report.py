"""``simdev report FILE -o report.html``: a step or the results of a sweep as a page.

``report/page`` makes the pages and recognises their files; ``compare`` and ``plan`` import the
endings and the name of the answer from here.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from ..ground.errors import InputError
from .options import DONE, DRAW_OPTIONS, PRICE_OPTION, require_drawn, require_price
from .outputs import drawing, files_of, json_text, output_files, printed_first, tell, watched

PAGE = (".html", ".htm")
HELP = "write a step, a sweep, plans or a search as one HTML page"
ANSWER = "plans.json"  # in the folder of simdev plan --output
DESCRIPTION = (
    "Writes one HTML page that needs nothing else: Gantt chart, memory, load, critical path and "
    "what if of a scenario or of a saved run; the best, the front and all rows of a sweep; plans "
    "and why they lose; the curves of a search."
)
OPTIONS = (
    (
        "file",
        "FILE",
        "a scenario (or an example's name), a saved run (JSON, may be gzipped; - is stdin), or "
        "results (.csv, .parquet), what --json of plan and search prints, or the folder of plans",
    ),
    ("-o --output", "OUT", "the page (.html)"),
    ("--json", "", "print the figures of a step as JSON, what if included"),
    PRICE_OPTION,
    *DRAW_OPTIONS,
    ("--no-what-if", "", "leave out what takes simulations of its own"),
)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    from ..files import write_text
    from ..files.examples import scenario_path
    from ..files.reading import label, read_json
    from ..report.page import answers_data, is_results, page, read_results, results_data, run_data

    args.file = _file_of(scenario_path(args.file))
    if args.output is None and not args.json:
        args.usage_error("the following arguments are required: -o/--output (or --json)")
    require_price(args.price)
    require_drawn(args)
    if args.json and is_results(args.file):
        raise InputError("is a table; --json prints the figures of one step", args.file)
    step: Any = None
    with output_files(args, {"output": PAGE}, page_inputs([args.file])) as out:
        if is_results(args.file):
            data = results_data(read_results(args.file), os.path.basename(args.file))
        else:
            value = read_json(args.file)
            answers = answers_data(value, label(args.file))
            if answers is None:
                step = _step(args.file, value, args)
            elif args.json:
                raise InputError("holds answers; --json prints the figures of one step", args.file)
            data = answers or run_data(*step)
        if args.json:
            figures = json_text(_figures(*step))
        with printed_first(figures) if args.json else nullcontext():
            if "output" in out:
                write_text(out["output"], page(data))
    if args.output is not None:
        tell(f"{data['headline']}; {args.output}")
    return DONE


def _file_of(source: str) -> str:
    """The file to read: for a folder of plans, their answer. Raises InputError."""
    if not os.path.isdir(source):
        return source
    answer = os.path.join(source, ANSWER)
    if not os.path.lexists(answer):
        raise InputError(f"has no {ANSWER}, which simdev plan --output writes", source)
    return answer


def _figures(subject: Any, gains: Sequence[Any]) -> dict[str, Any]:
    from ..report.table import fields_json

    figures: dict[str, Any] = subject.report.to_json()
    return figures | {"what_if": [fields_json(case) for case in gains]}


def _step(file: str, value: Any, args: argparse.Namespace) -> tuple[Any, Sequence[Any]]:
    """The step of a file (whose content is ``value``), and its what-ifs."""
    from ..report.page import read_subject, what_ifs

    subject = read_subject(file, args.price, value, args.draws, args.seed, drawing)
    if args.no_what_if:
        return subject, ()
    # Each case of "what if" is a simulation of its own.
    watch = watched("what if")
    return subject, what_ifs(subject.report, subject.kinds, subject.scenario, watch=watch)


def page_inputs(sources: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(path, description) of the files that a page of these sources may not replace."""
    from ..report.page import is_results

    for source in sources:
        yield source, "the input"
        # Results name their scenarios by labels, not by paths.
        named = () if is_results(source) else files_of(source)
        yield from ((path, f"a file of {source}") for path in named)
