"""What a client is told went wrong: a code for programs, a message and problems for people."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from typing import Any

from ..errors import DeadlockError, InputError, MissingCostError, SimdevError


class RequestError(SimdevError):
    """A request that is not answered, by a code that docs/serve.md explains."""

    def __init__(self, code: str, problem: str) -> None:
        self.code, self.problem = code, problem
        super().__init__(code, problem)

    def __str__(self) -> str:
        return self.problem


def error_json(error: Exception) -> dict[str, Any]:
    """The ``error`` of a reply.

    What nobody expected goes to stderr with its traceback, and is "internal".
    """
    if isinstance(error, InputError):
        code = "missing_cost" if isinstance(error, MissingCostError) else "input"
        return _told(code, error)
    if isinstance(error, RequestError):
        return _told(error.code, InputError(error.problem))
    if isinstance(error, DeadlockError):
        return _told("deadlock", InputError([line.strip() for line in str(error).split("\n")]))
    if isinstance(error, MemoryError):
        return _told("too_large", InputError("the server ran out of memory"))
    with suppress(OSError, ValueError):
        traceback.print_exception(error, file=sys.stderr)
    return _told(
        "internal", InputError(f"this is a bug in simdev: {type(error).__name__}: {error}")
    )


def _told(code: str, error: InputError) -> dict[str, Any]:
    problems = str(error).split("\n")  # as many and as long as a terminal would show, one line each
    return {"code": code, "message": problems[0], "problems": problems}
