"""``simdev sweep FILE ...``: many scenarios, one table."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InputError, printable
from .codes import BAD_INPUT, DONE
from .outputs import place_of

if TYPE_CHECKING:
    import pandas as pd


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "sweep",
        help="simulate many scenarios, or one with many settings, into one table",
        description="Simulates every scenario at every combination of settings: a row each. What "
        "does not fit is a "
        "row too; exits 2 where a scenario failed. Killed and started again, it goes "
        "on where it was.",
        allow_abbrev=False,
    )
    found.add_argument(
        "files", nargs="+", metavar="FILE", help="scenarios (JSON, may be gzipped; - is stdin)"
    )
    found.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=V,V",
        help=(
            "values of a field, like cluster.bandwidth=1,2,4,8Gbit/s or graph.batch=16,32; "
            "every combination is run"
        ),
    )
    found.add_argument("--grid", metavar="GRID", help="more fields and values, from a file (JSON)")
    found.add_argument(
        "-j",
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="so many at once, -1 on all cores (default 1)",
    )
    found.add_argument(
        "-o", "--out", metavar="OUT", help="write the table (.csv or .parquet; - is CSV on stdout)"
    )
    found.add_argument(
        "--journal",
        metavar="FILE",
        help="where finished rows are kept for the next run (default: OUT.journal)",
    )
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    from ..sweep import sweep
    from ..sweep.frame import check_place, counts, csv_text, write_results

    to_file = args.out is not None and args.out != "-"
    if to_file:
        check_place(args.out)
    journal = f"{args.out}.journal" if to_file and args.journal is None else args.journal
    if to_file and place_of(journal) == place_of(args.out):
        raise InputError(f"--journal: {journal} is the output of --out too")
    grid = _grid(args)
    before = _written(args.out)
    results = sweep(args.files, grid, args.jobs, journal)
    if to_file:
        if _written(args.out) != before:
            raise InputError(
                f"--out: another has written {args.out} meanwhile; the rows are kept in {journal}: "
                "start again with another --out, or to replace it"
            )
        write_results(results, args.out)
    else:
        print(
            csv_text(results)
            if args.out == "-"
            else _table(results, {field for one in grid for field in one}),
            end="",
        )
    told = counts(results)
    shown = ", ".join(f"{count:,} {status}" for status, count in told.items())
    rows = f"{len(results):,} scenario{'s' * (len(results) > 1)}: {shown}"
    print(rows + (f"; {args.out}" if to_file else ""), file=sys.stderr)
    if to_file and told.get("failed"):  # the table on stdout tells the reasons itself
        print(f"the first that failed: {_first_reason(results)}", file=sys.stderr)
    return BAD_INPUT if told.get("failed") else DONE


def _written(path: str | None) -> tuple[int, int] | None:
    """What tells one version of a file from the next: its number and time; None where there is
    none.
    """
    if path is None or not os.path.exists(path):
        return None
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns


def _first_reason(results: pd.DataFrame) -> str:
    failed = results[results["status"] == "failed"].iloc[0]
    return printable(f"{failed['scenario']}: {failed['reason']}".replace("\n", "; "))


def _grid(args: argparse.Namespace) -> Sequence[Mapping[str, Sequence[Any]]]:
    from ..files import read_grid
    from ..sweep.grid import crossed, parse_settings, points, slow_bandwidths

    try:
        settings = parse_settings(args.set)
        points(settings)
    except InputError as error:
        raise InputError([f"--set {problem}" for problem in error.problems]) from None
    for note in slow_bandwidths(settings):
        print(f"--set {note}", file=sys.stderr)
    if args.grid is None:
        return [settings]
    try:
        grid = crossed(read_grid(args.grid), settings)
        points(grid)
    except InputError as error:
        raise error.within(args.grid) from None
    return grid


def _table(results: pd.DataFrame, fields: Iterable[str]) -> str:
    """What people want to see of the results: ``fields`` are those that were set."""
    from ..analysis.table import Table, shorten, table_text
    from ..units import format_seconds

    names = [str(name) for name in results]
    settings = [name for name in names[1 : names.index("status")] if name in fields]
    body = []
    for row in results.to_dict("records"):
        seconds = row["step_time_s"]
        time = "-" if seconds != seconds else format_seconds(seconds)
        fits = {"ok": "yes", "infeasible": "NO"}.get(row["status"], "-")
        cells = (
            shorten(row["scenario"], 48),
            *(_cell(row[name]) for name in settings),
            time,
            fits,
            _cell(row["reason"]).replace("\n", "; "),
        )
        body.append(tuple(map(printable, cells)))
    head = (
        "<scenario",
        *(f"<{printable(name)}" for name in settings),
        "step time",
        "<fits",
        "<reason",
    )
    return table_text(Table("sweep", head, tuple(body))) + "\n"


def _cell(value: Any) -> str:
    import pandas as pd

    return "" if pd.isna(value) else str(value)
