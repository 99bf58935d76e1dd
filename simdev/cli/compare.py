"""``simdev compare A B``: two steps side by side, as text, JSON or a page."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

from ..errors import InputError
from .codes import DONE
from .report import page_place, write_page

ROWS_SHOWN = 12


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "compare",
        help="tell two steps apart: scenarios or saved runs",
        description=(
            "Compares two steps, each a scenario or a saved run, part by part; parts are "
            "matched by name."
        ),
        allow_abbrev=False,
    )
    found.add_argument(
        "first", metavar="A", help="a scenario or a saved run (JSON, may be gzipped; - is stdin)"
    )
    found.add_argument("second", metavar="B", help="another one")
    found.add_argument(
        "-o", "--out", metavar="OUT", help="write a page too, with both on one time axis (.html)"
    )
    found.add_argument(
        "--json", action="store_true", help="print the comparison as JSON (times in ps)"
    )
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    from ..report import compare_data, page

    _check(args)
    if args.out is None:
        first, second = _subjects(args)
    else:
        with page_place(args.out, [args.first, args.second]) as place:
            first, second = _subjects(args)
            write_page(place, page(compare_data(first, second)))
        print(f"page: {args.out}", file=sys.stderr)
    print(_json(first, second) if args.json else _text(first, second))
    return DONE


def _check(args: argparse.Namespace) -> None:
    from ..report import is_results

    if args.first == args.second == "-":
        raise InputError("A and B: only one of them can be stdin")
    for file in (args.first, args.second):
        if is_results(file):
            raise InputError("is a table; compare takes scenarios and saved runs", file)


def _subjects(args: argparse.Namespace) -> tuple[Any, Any]:
    from ..report import read_subject

    first, second = read_subject(args.first), read_subject(args.second)
    if first.name == second.name and args.first != args.second:  # the same file name in two folders
        return replace(first, name=args.first), replace(second, name=args.second)
    return first, second


def _text(first: Any, second: Any) -> str:
    from ..analysis import table_text
    from ..report import compare_sheets, sheet_table, verdict

    parts = [f"A: {first.name}\nB: {second.name}\n{verdict(first, second)}"]
    for sheet in compare_sheets(first.report, second.report):
        if sheet.rows:
            text = table_text(sheet_table(sheet, ROWS_SHOWN, 32))
            parts.append(f"{text}\n  {sheet.note}" if sheet.note else text)
    return "\n\n".join(parts)


def _json(first: Any, second: Any) -> str:
    from ..report import compare_sheets, verdict

    sheets = [sheet.to_json() for sheet in compare_sheets(first.report, second.report)]
    found = {"a": first.name, "b": second.name, "verdict": verdict(first, second), "sheets": sheets}
    return json.dumps(found, indent=1, allow_nan=False)
