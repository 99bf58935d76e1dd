"""Files that a verb writes: whole or not at all, and refused before any work is done."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf")


@contextmanager
def place_for(option: str, path: str) -> Iterator[str]:
    """The temporary file to fill, which takes the place of ``path`` at the end.

    Raises InputError before any work.
    """
    from ..files.writing import replacing

    with ExitStack() as stack:
        try:
            place = stack.enter_context(replacing(path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"{option}: cannot write {path}: {reason[:1].lower()}{reason[1:]}"
            ) from None
        yield place


@contextmanager
def places_for(wanted: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The same for several: name of an option's argument -> the temporary file."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(place_for(f"--{name.replace('_', '-')}", path))
            for name, path in wanted.items()
        }


def check_names(
    wanted: Mapping[str, str], endings: Mapping[str, Sequence[str]], taken: Mapping[str, str]
) -> None:
    """Refuse outputs whose names end otherwise than their options allow, and places that are taken
    or named twice.

    ``wanted`` is by name of an option's argument, ``taken`` tells what a place is. Raises
    InputError with all problems.
    """
    problems, used = [], dict(taken)
    for name, path in wanted.items():
        if path.startswith("/dev/"):
            continue
        option = f"--{name.replace('_', '-')}"
        if not path.lower().endswith(tuple(endings[name])):
            problems.append(f"{option}: {path}: the name must end in {' or '.join(endings[name])}")
        other = used.setdefault(place_of(path), f"the output of {option}")
        if other != f"the output of {option}":
            problems.append(f"{option}: {path} is {other} too")
    if problems:
        raise InputError(problems)


def files_of(source: str) -> Iterator[str]:
    """What a scenario file names and is there; its reader tells what is wrong with it."""
    from ..files.reading import read_json
    from ..files.scenario import named_files

    if os.path.isfile(source):
        value = read_json(source)
        if isinstance(value, dict):
            yield from filter(os.path.isfile, named_files(value, os.path.dirname(source)))


def place_of(path: str) -> str:
    """Where a path really leads, as far as can be told."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def save_figure(figure: Figure, place: str) -> None:
    """Same figure, same bytes: no dates, no random ids."""
    import matplotlib

    kind = os.path.splitext(place)[1][1:].lower() or "png"
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": "simdev"}):
        figure.savefig(place, format=kind, metadata=dates.get(kind))
