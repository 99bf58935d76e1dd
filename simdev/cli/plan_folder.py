"""The folder of ``simdev plan --output``: a scenario for each plan, the answer, and its page."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import InputError, printable, reason_of
from .report import ANSWER, write_page

PAGE = "plans.html"
PLAN_FILE = re.compile(rf"\d{{2,}}\.json|{re.escape(ANSWER)}|{re.escape(PAGE)}")


def require_folder(folder: str) -> None:
    """Before anything is searched. Raises InputError."""
    try:
        os.makedirs(folder, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError(f"--output: cannot write {folder}: {reason_of(error)}") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"--output: cannot write {folder}: no permission")


def write_plans(scenarios: Iterable[Any], answer: str, folder: str) -> None:
    """A scenario for each plan, named by its place: ``01.json``; what ``--json`` prints of all of
    them, and its page. Those of an earlier answer move into a folder of their own, once all of this
    is written. Raises InputError.
    """
    from ..report.page import answers_data, page

    try:
        os.makedirs(folder, exist_ok=True)
        with TemporaryDirectory(prefix=".plans-", dir=folder) as made:
            for number, scenario in enumerate(scenarios, 1):
                with open(os.path.join(made, f"{number:02}.json"), "w", encoding="utf-8") as file:
                    json.dump(scenario, file, indent=1, default=str)
                    file.write("\n")
            with open(os.path.join(made, ANSWER), "w", encoding="utf-8") as file:
                file.write(answer + "\n")
            shown = answers_data(json.loads(answer), ANSWER)
            assert shown is not None
            write_page(os.path.join(made, PAGE), page(shown))
            _set_aside(folder)
            for name in os.listdir(made):
                os.rename(os.path.join(made, name), os.path.join(folder, name))
    except (OSError, ValueError) as error:
        raise InputError(f"--output: cannot write {folder}: {reason_of(error)}") from None


def _set_aside(folder: str) -> None:
    """Moves the plans of an earlier answer into ``before-1``, or the first such folder that is not
    there yet.
    """
    names = sorted(name for name in os.listdir(folder) if PLAN_FILE.fullmatch(name))
    if not names:
        return
    every = (os.path.join(folder, f"before-{number}") for number in count(1))
    before = next(path for path in every if not os.path.lexists(path))
    os.makedirs(before)
    for name in names:
        os.rename(os.path.join(folder, name), os.path.join(before, name))
    print(f"plans of an earlier answer are in {printable(before)} now", file=sys.stderr)
