"""What of an answer a page has already: of a timeline all that hangs on no times."""

from __future__ import annotations

from typing import Any

LASTING = ("name", "source", "destination", "bytes")
"""The columns of a timeline's tasks that stay as long as the tasks do."""


class Kept:
    """The part of the last timeline that hangs on no times, and the number under which pages know
    it: its ``shape``. Not safe to use from several threads.
    """

    def __init__(self) -> None:
        self._part: object = None
        self._shape = 0

    def shortened(self, timeline: dict[str, Any], shape: int | None) -> dict[str, Any]:
        """The timeline with its ``shape``; for a page that holds that very shape without what it
        has from there: LASTING and ``before``.
        """
        tasks, before = timeline["tasks"], timeline["before"]
        part = [*(tasks[column] for column in LASTING), before]
        if part != self._part:
            self._part, self._shape = part, self._shape + 1
        answer = timeline | {"shape": self._shape}
        if shape != self._shape:
            return answer
        del answer["before"]
        return answer | {"tasks": {name: tasks[name] for name in tasks if name not in LASTING}}
