"""The places of the examples that ship with simdev: scenarios, the profiles and graphs that they
name, and notebooks.

In a clone they are at the top of the repository, beside the package; a wheel holds them inside it
(setup.py copies them there). Commands and ``load_scenario`` take the name of an example by
``scenario_path``.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from ..ground import PACKAGE
from ..ground.errors import InputError
from .reading import meant, shipped

FOLDERS = ("scenarios", "profiles", "notebooks")


@cache
def examples_folder() -> Path:
    """The folder that holds FOLDERS, wherever simdev is installed. Raises InputError where they are
    missing.
    """
    for folder in (PACKAGE / "examples", PACKAGE.parent):
        if all((folder / name).is_dir() for name in FOLDERS):
            return folder
    raise InputError(
        f"the examples are missing from {PACKAGE}: install simdev anew, from a wheel or a clone"
    )


def scenario_names() -> tuple[str, ...]:
    """The names of the scenarios that ship (their files without the ending), sorted."""
    return shipped(examples_folder() / "scenarios")


def scenario_path(source: str) -> str:
    """The path of a scenario given by its path or by the name of a shipped example. Where a file
    has that name the file is taken.

    Raises InputError for a word that is neither.
    """
    is_word = source not in ("", "-") and not any(c in source for c in "./\\\0")
    if not is_word or os.path.lexists(source):
        return source
    names = scenario_names()
    if source in names:
        return str(examples_folder() / "scenarios" / f"{source}.json")
    hint = meant(source, names, '"simdev examples" lists those that ship')
    raise InputError(f"neither a file nor an example; {hint}", source)
