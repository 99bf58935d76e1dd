"""``simdev report FILE -o report.html``: one step, or the results of a sweep, as a page to look
at.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import InputError
from .codes import DONE
from .outputs import files_of, place_for, place_of


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "report",
        help="write a step or the results of a sweep as one HTML page",
        description="Writes one HTML page that needs nothing else: Gantt chart, memory, load, "
        "critical path and what "
        "if of a scenario or of a saved run; table and scatter plot of the results of a sweep.",
        allow_abbrev=False,
    )
    found.add_argument(
        "file",
        metavar="FILE",
        help=(
            "a scenario, a saved run (JSON, may be gzipped; - is stdin), or results (.csv, "
            ".parquet)"
        ),
    )
    found.add_argument("-o", "--out", metavar="OUT", required=True, help="the page (.html)")
    found.add_argument(
        "--no-what-if", action="store_true", help="leave out what takes simulations of its own"
    )
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    from ..report import is_results, page, read_results, results_data

    with page_place(args.out, [args.file]) as place:
        if is_results(args.file):
            data = results_data(read_results(args.file), os.path.basename(args.file))
        else:
            data = _step(args.file, what_if=not args.no_what_if)
        write_page(place, page(data))
    print(f"{data['headline']}; {args.out}", file=sys.stderr)
    return DONE


def _step(file: str, what_if: bool) -> dict[str, Any]:
    from ..report import read_subject, run_data, what_ifs

    subject = read_subject(file)
    gains = (
        what_ifs(subject.report, subject.kinds, subject.scenario, watch=_watched) if what_if else ()
    )
    return run_data(subject, gains)


def _watched(cases: Sequence[Any]) -> Sequence[Any]:
    from tqdm import tqdm

    bar: Sequence[Any] = tqdm(
        cases, delay=2, disable=None, leave=False, desc="what if", file=sys.stderr
    )
    return bar


@contextmanager
def page_place(out: str, sources: Sequence[str]) -> Iterator[str]:
    """The temporary file to fill, which takes its place at the end.

    Raises InputError before any work.
    """
    _check_place(out, sources)
    with place_for("--out", out) as place:
        yield place


def _check_place(out: str, sources: Sequence[str]) -> None:
    from ..report import is_results

    if out.startswith("/dev/"):
        return
    if not out.lower().endswith((".html", ".htm")):
        raise InputError(f"--out: {out}: the name must end in .html")
    for source in sources:
        if place_of(source) == place_of(out):
            raise InputError(f"--out: {out} is the input too")
        named = () if is_results(source) else files_of(source)
        if place_of(out) in map(place_of, named):
            raise InputError(f"--out: {out} is a file of {source} too")


def write_page(place: str, text: str) -> None:
    """Fill the file."""
    with open(place, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
