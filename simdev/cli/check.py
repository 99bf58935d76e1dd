"""``simdev check RUN``: judge a saved run by the independent checker."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .codes import DONE, FAILED_CHECK


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "check",
        help="check a saved run against the execution contract",
        description=(
            "Check a run that simdev simulate --save has written. Exits 3 where it breaks "
            "the contract."
        ),
        allow_abbrev=False,
    )
    found.add_argument(
        "file", metavar="RUN", help="the saved run (JSON, may be gzipped; - is stdin)"
    )
    found.add_argument("--json", action="store_true", help="print the findings as JSON")
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    from ..check import Claim, check
    from ..files import read_run

    saved = read_run(args.file)
    claim = Claim(saved.trace_ps, saved.peaks, saved.levels, saved.overflows, saved.feasible)
    violations = check(saved.task_graph, saved.trace, claim)
    count = len(saved.task_graph.tasks)
    if args.json:
        found = [
            {"rule": one.rule, "names": list(one.names), "message": one.message}
            for one in violations
        ]
        print(json.dumps({"ok": not found, "tasks": count, "violations": found}, indent=1))
    elif violations:
        print("\n".join(map(str, violations)))
    else:
        steps = saved.task_graph.steps
        what = "step" if steps == 1 else f"{steps} steps"
        print(f"ok: {count} tasks, {what} {saved.trace.end_ps / 1e12:.9g} s, no violation")
    if violations:
        told = (
            f"{len(violations)} violation{'s' if len(violations) > 1 else ''} of the "
            "execution contract"
        )
        print(f"{args.file}: {told} (times in ps)", file=sys.stderr)
    return FAILED_CHECK if violations else DONE
