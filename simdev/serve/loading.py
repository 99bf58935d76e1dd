"""Reading a client's scenario: files that would block or lead elsewhere are refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import InputError
from ..files.reading import read_json
from ..scenario import Scenario, load_scenario
from .errors import RequestError

PARTS = ("graph", "cluster", "profile", "devices", "strategy")


def read_question(source: Any, root: str | None) -> Scenario:
    """The scenario of a path, or of an object whose paths are relative to the working directory.

    Raises InputError; a file must be a regular one (nothing that blocks, nor stdin), under ``root`` where one is given.
    """
    if isinstance(source, dict):
        _require_plain(_named_files(source, ""), root)
        return load_scenario(source)
    if not isinstance(source, str) or not source or "\0" in source:
        raise RequestError("invalid", "params.scenario: must be a path or an object")
    _require_plain([source], root)
    value = read_json(source)
    if isinstance(value, dict):
        _require_plain(_named_files(value, os.path.dirname(source)), root)
    return load_scenario(source)


def _named_files(value: Mapping[str, Any], folder: str) -> Iterator[str]:
    for part in PARTS:
        named = value.get(part)
        for name in named if isinstance(named, list) else [named]:
            if isinstance(name, str) and name and "\0" not in name:
                yield os.path.normpath(os.path.join(folder, name))


def _require_plain(paths: Any, root: str | None) -> None:
    problems = [f"{path}: {reason}" for path in paths if (reason := _fault(path, root))]
    if problems:
        raise InputError(problems)


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
