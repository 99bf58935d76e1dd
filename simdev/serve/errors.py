"""The errors of replies: a code for programs, a message and problems for people."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from typing import Any

from ..errors import DeadlockError, InputError, MissingCostError, SimdevError


class RequestError(SimdevError):
    """A request that is not answered, by a code that docs/how-to/serve.md explains."""

    def __init__(self, problem: str, code: str = "invalid") -> None:
        self.problem, self.code = problem, code
        super().__init__(problem, code)

    def __str__(self) -> str:
        return self.problem


def error_json(error: Exception) -> dict[str, Any]:
    """The ``error`` of a reply.

    What nobody expected goes to stderr with its traceback, and is "internal".
    """
    if isinstance(error, InputError):
        code = "missing_cost" if isinstance(error, MissingCostError) else "input"
    elif isinstance(error, RequestError):
        code, error = error.code, InputError(error.problem)
    elif isinstance(error, DeadlockError):
        code = "deadlock"
        error = InputError([line.strip() for line in str(error).split("\n")])
    elif isinstance(error, MemoryError):
        code, error = "too_large", InputError("the server ran out of memory")
    else:
        # stderr may be closed, or its reader gone: the client is answered all the same.
        with suppress(OSError, ValueError):
            traceback.print_exception(error, file=sys.stderr)
        code = "internal"
        error = InputError(f"this is a bug in simdev: {type(error).__name__}: {error}")
    # The text of an InputError bounds the number and the length of its lines.
    problems = str(error).split("\n")
    return {"code": code, "message": problems[0], "problems": problems}
