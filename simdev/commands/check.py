"""``simdev check RUN``: judge a saved run by the independent checker.

``execution/check`` has the rules, ``files/run.py`` reads the run. ``--check`` of other verbs judges
by the same checker (``outputs.is_faulty``).
"""

from __future__ import annotations

import argparse

from ..ground.errors import printable
from .options import DONE, FAILED_CHECK
from .outputs import json_text, tell

HELP = "check a saved run against the execution contract"
DESCRIPTION = (
    "Check a run that simdev simulate --save has written. Exits 3 where it breaks the contract."
)
OPTIONS = (
    ("file", "RUN", "the saved run (JSON, may be gzipped; - is stdin)"),
    ("--json", "", "print the findings as JSON"),
)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    from ..execution.check import Claim, check
    from ..files import read_run

    saved = read_run(args.file)
    # The claims of the file are judged too, not only the spans.
    violations = check(saved.task_graph, saved.trace, Claim(**saved.claims))
    tasks, count = len(saved.task_graph.tasks), len(violations)
    if args.json:
        rows = [
            {"rule": violation.rule, "names": list(violation.names), "message": violation.message}
            for violation in violations
        ]
        print(json_text({"ok": not rows, "tasks": tasks, "violations": rows}))
    elif violations:
        print("\n".join(printable(str(violation)) for violation in violations))
    else:
        steps = saved.task_graph.steps
        noun = "step" if steps == 1 else f"{steps} steps"
        print(f"ok: {tasks} tasks, {noun} {saved.trace.end_ps / 1e12:.9g} s, no violation")
    if violations:
        counted = f"{count} violation{'s' * (count > 1)} of the execution contract"
        tell(f"{args.file}: {counted} (times in ps)")
    return FAILED_CHECK if violations else DONE
