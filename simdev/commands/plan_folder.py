"""The answer of ``simdev plan`` as JSON, and the folder of ``--output``: a scenario for each plan,
the answer, and its page.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from ..ground.errors import InputError, reason_of
from .outputs import tell
from .report import ANSWER

PAGE = "plans.html"
PLAN_FILE = re.compile(rf"\d{{2,}}\.json|{re.escape(ANSWER)}|{re.escape(PAGE)}")


def answer_text(answer: Mapping[str, Any], folder: str = "") -> str:
    """The answer as JSON; the scenarios of its ``plans`` name their files from ``folder``."""
    plans = [row | {"scenario": _seen_from(folder, row.get("scenario"))} for row in answer["plans"]]
    return json.dumps({**answer, "plans": plans}, indent=1, default=str)


def _seen_from(folder: str, scenario: Any) -> Any:
    from ..files.named import moved

    return None if scenario is None else moved(scenario, "", folder)


def require_plan_folder(folder: str) -> None:
    """Before anything is searched; leaves nothing behind. Raises InputError."""
    from ..files.writing import require_folder

    try:
        require_folder(folder, PLAN_FILE)
    except (OSError, ValueError) as error:
        raise InputError(f"--output: cannot write {folder}: {reason_of(error)}") from None


def write_plans(answer: Mapping[str, Any], folder: str) -> None:
    """A scenario for each plan, named by its place: ``01.json``; what ``--json`` prints of all of
    them, and its page: the whole folder at once. The files of an earlier answer move into a folder
    of their own in it. Raises InputError.
    """
    from ..files.writing import new_folder, write_text
    from ..report.page import answers_data, page

    text = answer_text(answer, folder) + "\n"
    shown = answers_data(json.loads(text), ANSWER)
    assert shown is not None
    files = {ANSWER: text, PAGE: page(shown)}
    scenarios = filter(None, (row.get("scenario") for row in answer["plans"]))
    for number, scenario in enumerate(scenarios, 1):
        moved = _seen_from(folder, scenario)
        files[f"{number:02}.json"] = json.dumps(moved, indent=1, default=str) + "\n"
    there = _names(folder)
    try:
        with new_folder(folder, PLAN_FILE) as made:
            for name, content in files.items():
                write_text(os.path.join(made, name), content)
    except (OSError, ValueError) as error:
        raise InputError(f"--output: cannot write {folder}: {reason_of(error)}") from None
    for name in sorted(_names(folder) - there - files.keys()):
        tell(f"plans of an earlier answer are in {os.path.join(folder, name)} now")


def _names(folder: str) -> set[str]:
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()
