"""Reading a client's scenario: files that would block or lead elsewhere are refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import preset_names
from ..files.reading import read_json
from ..files.scenario import named_files
from ..scenario import Scenario, load_scenario
from ..strategy import SHORT_FORMS
from .errors import RequestError


def read_question(source: Any, root: str | None) -> Scenario:
    """The scenario of a path, or of an object whose paths are relative to the working directory.

    Raises InputError; a file must be a regular one (nothing that blocks, nor stdin), under ``root``
    where one is given.
    """
    if isinstance(source, dict):
        _require_plain(_files(source, ""), root)
        return load_scenario(source)
    if not isinstance(source, str) or not source or "\0" in source:
        raise RequestError("invalid", "params.scenario: must be a path or an object")
    _require_plain([source], root)
    value = read_json(source)
    if isinstance(value, dict):
        _require_plain(_files(value, os.path.dirname(source)), root)
    return load_scenario(source)


def _files(document: Mapping[str, Any], folder: str) -> Iterator[str]:
    """The files that a scenario names, without names of presets and short forms."""
    names = {
        os.path.normpath(os.path.join(folder, name)) for name in (*preset_names(), *SHORT_FORMS)
    }
    for path in named_files(document, folder):
        if path not in names or os.path.lexists(path):  # a file goes before a preset
            yield path


def _require_plain(paths: Iterable[str], root: str | None) -> None:
    """Raises InputError at the first that may not be read: what follows may be found only by
    opening it.
    """
    for path in paths:
        reason = _fault(path, root)
        if reason:
            raise InputError(f"{path}: {reason}")


def _fault(path: str, root: str | None) -> str | None:
    """Why a file may not be read; None also where it is not there, which its reader tells better.

    What lies outside of ``root`` is refused unseen, so that no answer tells whether it is there.
    """
    if path == "-":
        return "stdin is not a file"
    try:
        if root is not None and not _is_inside(path, root):
            return "lies outside the folder that this server reads"
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return None
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "is not a regular file"


def _is_inside(path: str, root: str) -> bool:
    folder, place = Path(os.path.realpath(root)), Path(os.path.realpath(path))
    return place.is_relative_to(folder)
