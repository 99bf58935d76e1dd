"""Outputs of verbs besides their answer: files, whole or not at all, and progress and findings on
stderr.

Verbs write files through ``output_files``, so that no input is replaced and no half-written file is
left. ``plan``, ``family`` and ``examples`` write folders and name the option in their errors
themselves; ``sweep`` writes in ``search/sweep/frame.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import Thread
from time import sleep, time
from typing import TYPE_CHECKING, Any

from ..ground.errors import InputError, printable, reason_of, refuse, steered
from .options import flag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..nouns.trace import Trace

PICTURES = (".png", ".svg", ".pdf")
PLACE_DIGITS = 6  # digits of the place of axes, as a part of the picture: under a tenth of a pixel
JSON = (".json", ".json.gz")


class SafeStream:
    """A stream that escapes control characters, so that no name from an argument or a file can
    steer the terminal; ``steered`` is the stream below.
    """

    def __init__(self, stream: Any) -> None:
        self.steered = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.steered, name)

    def write(self, text: str) -> int:
        """Write a text of any number of lines."""
        self.steered.write(printable(text, lines=True))
        return len(text)


def tell(*lines: str) -> None:
    """Print lines on stderr, with line breaks and control characters escaped."""
    for line in lines:
        print(printable(line), file=sys.stderr)


def json_text(value: object, ascii_only: bool = True) -> str:
    """An answer as JSON, for programs and people; no number in it may be NaN or infinite."""
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=ascii_only)


@contextmanager
def printed_first(answer: object) -> Iterator[None]:
    """Prints an answer before the block writes files of it, so that a full disk or a kill costs
    only the files. An error of stdout is raised after the block.
    """
    refused: OSError | None = None
    try:
        print(answer, flush=True)
    except OSError as error:
        refused = error
    yield
    if refused is not None:
        raise refused


@contextmanager
def output_files(
    args: argparse.Namespace,
    endings: Mapping[str, Sequence[str]],
    inputs: Iterable[tuple[str, str]],
) -> Iterator[dict[str, str]]:
    """The temporary file to fill for each output that was given, by the name of its argument; at
    the end it replaces the output.

    ``endings`` has the allowed endings of outputs by argument, ``inputs`` the (path, description)
    of the files that no output may replace. Raises InputError before any work.
    """
    from ..files import replacing

    paths = {name: getattr(args, name) for name in endings if getattr(args, name) is not None}
    # Inputs are looked up only where there is an output that could replace them.
    refuse(_problems(paths, endings, inputs) if paths else ())
    with ExitStack() as stack:
        temporary = {}
        for name, path in paths.items():
            with writing(path, flag(name)):
                temporary[name] = stack.enter_context(replacing(path))
        yield temporary


@contextmanager
def writing(place: str, option: str = "--output") -> Iterator[None]:
    """Turns errors of writing in the block into an InputError that names the option."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise InputError(f"{option}: cannot write {place}: {reason_of(error)}") from None


def _problems(
    paths: Mapping[str, str],
    endings: Mapping[str, Sequence[str]],
    inputs: Iterable[tuple[str, str]],
) -> Iterator[str]:
    occupied = {real_path(path): description for path, description in inputs}
    for name, path in paths.items():
        # A device is written to and not replaced, so it may have any ending and be named twice.
        if path.startswith("/dev/"):
            continue
        output = f"the output of {flag(name)}"
        if not path.lower().endswith(tuple(endings[name])):
            yield f"{flag(name)}: {path}: the name must end in {' or '.join(endings[name])}"
        occupant = occupied.setdefault(real_path(path), output)
        if occupant != output:
            yield f"{flag(name)}: {path} is {occupant} too"


def files_of(source: str) -> Iterator[str]:
    """The existing files that a scenario file names; errors are left to the scenario's reader."""
    from ..files.reading import read_json
    from ..files.scenario import named_files

    if os.path.isfile(source):
        value = read_json(source)
        if isinstance(value, dict):
            yield from filter(os.path.isfile, named_files(value, os.path.dirname(source)))


def real_path(path: str) -> str:
    """The path without links; the path itself where they cannot be resolved."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # a loop of links, a null byte
        return path


def write_trace(
    trace: Trace,
    places: Mapping[str, str],
    figure: Callable[[], Figure],
    notes: Sequence[str] = (),
) -> None:
    """Fill the files of ``--save``, ``--trace`` (with the notes) and ``--gantt``, whichever are
    given; ``figure`` draws the chart.
    """
    if "save" in places:
        from ..files import write_run

        write_run(trace, places["save"])
    if "trace" in places:
        from ..report.export import export_chrome_trace

        export_chrome_trace(trace, places["trace"], notes)
    if "gantt" in places:
        save_figure(figure(), places["gantt"])


def save_figure(figure: Figure, place: str) -> None:
    """Draw a figure into a file; equal figures give equal bytes."""
    import matplotlib

    kind = os.path.splitext(place)[1][1:].lower() or "png"
    # Without these, SVG and PDF carry the date, and SVG random ids.
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    _settle(figure)
    with matplotlib.rc_context({"svg.hashsalt": "simdev"}):
        figure.savefig(place, format=kind, metadata=dates.get(kind))


def _settle(figure: Figure) -> None:
    """Lay out the axes once, and fix them at rounded places.

    The solver behind "constrained" orders its unknowns by their addresses, so the last bits of
    places differ between processes, and SVG names its clips after them.
    """
    if figure.get_layout_engine() is None:
        return
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for ax in figure.axes:
        left, bottom, width, height = (
            round(side, PLACE_DIGITS) for side in ax.get_position().bounds
        )
        ax.set_position((left, bottom, width, height))


def is_faulty(trace: Trace) -> bool:
    """Whether the checker finds a violation; all of them go to stderr."""
    from ..execution.check import check

    violations = check(trace.task_graph, trace)
    tasks, count = len(trace.task_graph.tasks), len(violations)
    summary = f"check: {tasks:,} tasks, {count or 'no'} violation{'s' * (count > 1)}"
    tell(*map(str, violations), summary)
    return bool(violations)


def progress_bar(description: str, **options: Any) -> Any:
    """A bar of tqdm on stderr for work of more than two seconds, on a terminal only."""
    from tqdm import tqdm

    # ``disable=None`` is how tqdm is told to be silent where stderr is no terminal.
    quiet = {"delay": 2, "disable": None, "leave": False, "file": steered(sys.stderr)}
    bar = tqdm(desc=printable(description), **quiet | options)
    if not bar.disable:
        Thread(target=_beat, args=(bar,), daemon=True).start()
    return bar


def watched(description: str) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that returns a sequence with a progress bar around it."""

    def watch(parts: Sequence[Any]) -> Sequence[Any]:
        bar: Sequence[Any] = progress_bar(description, iterable=parts)
        return bar

    return watch


drawing = watched("draw")
"""Returns the parts of draws with a progress bar around them."""


def _beat(bar: Any) -> None:
    """Redraws a bar every second, for work that does not count for long: a solver, an import."""
    shown = bar.start_t + bar.delay
    while not bar.disable:
        sleep(1)
        if time() >= shown:
            # tqdm wipes a closed bar only if it was drawn after its delay.
            bar.last_print_t = max(bar.last_print_t, shown)
            bar.refresh()
