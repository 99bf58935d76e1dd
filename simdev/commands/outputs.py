"""Outputs of verbs besides their answer: files, whole or not at all, and progress and findings on
stderr.

Verbs that write files go through ``output_files``, so that no input is replaced and nothing half is
left. ``plan``, ``family`` and ``examples`` write folders and name the option in errors by
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
PLACE_DIGITS = 6  # of the place of axes, in parts of the picture: below a tenth of a pixel
JSON = (".json", ".json.gz")


class SafeStream:
    """A stream to a terminal that escapes steering characters, so that no name in an argument or a
    file steers it; ``steered`` is the stream below.
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
    """Say something on stderr; what names line breaks or steers a terminal is escaped."""
    for line in lines:
        print(printable(line), file=sys.stderr)


def json_text(value: object, ascii_only: bool = True) -> str:
    """An answer as JSON, for programs and people; no number in it may be NaN or infinite."""
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=ascii_only)


@contextmanager
def printed_first(answer: object) -> Iterator[None]:
    """Prints an answer before the block writes files of it, so that a full disk or a kill costs the
    files alone; a stdout that takes no more is told of after the block.
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
    """The name of each argument that was given an output -> the temporary file to fill, which takes
    the place of the output at the end.

    ``endings`` says by argument how names of outputs may end, ``inputs`` are (path, description) of
    the files that no output may replace. Raises InputError before any work.
    """
    from ..files import replacing

    paths = {name: getattr(args, name) for name in endings if getattr(args, name) is not None}
    # Inputs are looked for only where an output could replace one.
    refuse(_problems(paths, endings, inputs) if paths else ())
    with ExitStack() as stack:
        temporary = {}
        for name, path in paths.items():
            with writing(path, flag(name)):
                temporary[name] = stack.enter_context(replacing(path))
        yield temporary


@contextmanager
def writing(place: str, option: str = "--output") -> Iterator[None]:
    """An error of the block is told of the option that names the place. Raises InputError."""
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
        # A device is written to and not replaced, so it may be anything and be named twice.
        if path.startswith("/dev/"):
            continue
        output = f"the output of {flag(name)}"
        if not path.lower().endswith(tuple(endings[name])):
            yield f"{flag(name)}: {path}: the name must end in {' or '.join(endings[name])}"
        occupant = occupied.setdefault(real_path(path), output)
        if occupant != output:
            yield f"{flag(name)}: {path} is {occupant} too"


def files_of(source: str) -> Iterator[str]:
    """The existing files that a scenario file names; its reader tells what is wrong with it."""
    from ..files.reading import read_json
    from ..files.scenario import named_files

    if os.path.isfile(source):
        value = read_json(source)
        if isinstance(value, dict):
            yield from filter(os.path.isfile, named_files(value, os.path.dirname(source)))


def real_path(path: str) -> str:
    """The path without links, as far as can be told."""
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
    """Fill the places of ``--save``, ``--trace`` (which bears the notes) and ``--gantt``; the chart
    is drawn only then.
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
    """Draw into a file; the same figure gives the same bytes."""
    import matplotlib

    kind = os.path.splitext(place)[1][1:].lower() or "png"
    # Without these, SVG and PDF carry the date, and SVG random ids.
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    _settle(figure)
    with matplotlib.rc_context({"svg.hashsalt": "simdev"}):
        figure.savefig(place, format=kind, metadata=dates.get(kind))


def _settle(figure: Figure) -> None:
    """Put the axes where the layout wants them, and leave them there.

    The solver behind "constrained" orders its unknowns by their addresses, so that the last bits of
    places differ from one process to the next; SVG names its clips by them.
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
    """A bar of tqdm on stderr for what takes longer than two seconds, on a terminal only."""
    from tqdm import tqdm

    # ``disable=None`` is how tqdm is told to be silent where stderr is no terminal.
    quiet = {"delay": 2, "disable": None, "leave": False, "file": steered(sys.stderr)}
    bar = tqdm(desc=printable(description), **quiet | options)
    if not bar.disable:
        Thread(target=_beat, args=(bar,), daemon=True).start()
    return bar


def watched(description: str) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that gives the parts of a sequence with a bar, which shows how far they are."""

    def watch(parts: Sequence[Any]) -> Sequence[Any]:
        bar: Sequence[Any] = progress_bar(description, iterable=parts)
        return bar

    return watch


drawing = watched("draw")
"""Gives the parts of draws with a bar."""


def _beat(bar: Any) -> None:
    """Draws a bar every second, for work that counts nothing for long: a solver, one import."""
    shown = bar.start_t + bar.delay
    while not bar.disable:
        sleep(1)
        if time() >= shown:
            # Only a bar that was drawn after its delay is wiped when it is closed.
            bar.last_print_t = max(bar.last_print_t, shown)
            bar.refresh()
