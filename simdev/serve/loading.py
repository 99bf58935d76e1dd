"""Reading a client's scenario: files that would block or lead elsewhere are refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Any

from ..errors import InputError
from ..files.reading import read_json
from ..files.scenario import named_files
from ..scenario import Scenario, load_scenario
from .errors import RequestError


def read_question(source: Any, root: str | None) -> Scenario:
    """The scenario of a path, or of an object whose paths are relative to the working directory.

    Raises InputError; a file must be a regular one (nothing that blocks, nor stdin), under ``root`` where one is given.
    """
    if isinstance(source, dict):
        _require_plain(named_files(source, ""), root)
        return load_scenario(source)
    if not isinstance(source, str) or not source or "\0" in source:
        raise RequestError("invalid", "params.scenario: must be a path or an object")
    _require_plain([source], root)
    value = read_json(source)
    if isinstance(value, dict):
        _require_plain(named_files(value, os.path.dirname(source)), root)
    return load_scenario(source)


def _require_plain(paths: Iterable[str], root: str | None) -> None:
    """Raises InputError at the first that may not be read: what follows may be found only by opening it."""
    for path in paths:
        reason = _fault(path, root)
        if reason:
            raise InputError(f"{path}: {reason}")


def _fault(path: str, root: str | None) -> str | None:
    """Why a file may not be read; None also where it is not there, which its reader tells better."""
    if path == "-":
        return "stdin is not a file"
    try:
        mode, place = os.stat(path).st_mode, os.path.realpath(path)
    except (OSError, ValueError):
        return None
    if root is not None and os.path.commonpath([os.path.realpath(root), place]) != os.path.realpath(root):
        return "lies outside the folder that this server reads"
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "is not a regular file"
