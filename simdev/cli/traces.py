"""What the verbs that simulate write: a picture, a trace, the saved run; and what the checker says
of it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .outputs import PICTURES, check_names, files_of, place_of, places_for, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..trace import Trace

ENDINGS = {"gantt": PICTURES, "trace": (".json", ".json.gz"), "save": (".json", ".json.gz")}


@contextmanager
def outputs(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Option -> the temporary file to fill, which takes its place at the end.

    Raises InputError before any work.
    """
    wanted = {
        name: getattr(args, name)
        for name in ("gantt", "trace", "save")
        if getattr(args, name) is not None
    }
    _check_names(
        wanted,
        args.file or "",
        [one for one in (args.cluster, args.csv) if one and os.path.isfile(one)],
    )
    with places_for(wanted) as places:
        yield places


def _check_names(wanted: dict[str, str], source: str, inputs: list[str]) -> None:
    taken = {place_of(source): f"the scenario {source}"}
    taken |= {place_of(path): f"the input {path}" for path in inputs}
    taken |= (
        {place_of(path): f"a file of the scenario {source}" for path in files_of(source)}
        if wanted
        else {}
    )
    check_names(wanted, ENDINGS, taken)


def write(trace: Trace, places: dict[str, str], figure: Callable[[], Figure]) -> None:
    """Write what is wanted; the chart is drawn only then."""
    if "save" in places:
        from ..files import write_run

        write_run(trace, places["save"])
    if "trace" in places:
        from ..export import export_chrome_trace

        export_chrome_trace(trace, places["trace"])
    if "gantt" in places:
        save_figure(figure(), places["gantt"])


def is_faulty(trace: Trace) -> bool:
    """Whether the checker finds a fault; its findings go to stderr."""
    from ..check import check

    violations = check(trace.task_graph, trace)
    for violation in violations:
        print(violation, file=sys.stderr)
    count = len(trace.task_graph.tasks)
    print(
        (
            f"check: {count:,} tasks, {len(violations) or 'no'} "
            f"violation{'s' * (len(violations) > 1)}"
        ),
        file=sys.stderr,
    )
    return bool(violations)


def shown_name(file: str) -> str:
    """How messages name a file."""
    return "<stdin>" if file == "-" else file
