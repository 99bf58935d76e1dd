"""The profile doctor: looks for times that cannot be true, or were not measured as they should be.

``examine`` is the entry point. A warning is a hint for a person, never a correction: no file is
changed.

``simdev profile doctor`` calls it. A check is a function of ``checks`` and a row of CHECKS; the
site's table of checks is made from CHECKS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from . import checks
from .sheet import Sheet, read_sheet

Check = Callable[[Sheet], Iterator[str]]

CHECKS: dict[str, Check] = {
    "noise": checks.noise,
    "header": checks.header,
    "quantiles": checks.quantiles,
    "repetitions": checks.repetitions,
    "spread": checks.spread,
    "roofline": checks.roofline,
    "dispatch": checks.dispatch,
    "clocks": checks.clocks,
    "backward": checks.backward,
    "monotone": checks.monotone,
    "units": checks.times,
    "work": checks.counts,
    "copies": checks.copies_within,
}
"""The checks of one profile, by the name shown in their warnings."""


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning: the file, the name of the check, and the message."""

    file: str
    check: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.check}: {self.message}"


def examine(files: Iterable[str | os.PathLike[str]]) -> list[Warned]:
    """Warnings about each profile alone, and then about pairs of profiles, in the order of files.

    Raises InputError for a file that is no profile.
    """
    sheets = [read_sheet(file) for file in files]
    warnings = [
        Warned(sheet.file, name, message)
        for sheet in sheets
        for name, check in CHECKS.items()
        for message in check(sheet)
    ]
    return warnings + [
        Warned(second.file, name, message)
        # Each pair once; the warning names the later file as the copy.
        for i, second in enumerate(sheets)
        for first in sheets[:i]
        for name, compare in (("copies", checks.copies), ("clocks", checks.clocks_between))
        for message in compare(first, second)
    ]


__all__ = ["CHECKS", "Warned", "examine"]
