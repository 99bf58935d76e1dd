"""The errors of replies: a code for programs, a message and problems for people.

``protocol`` and ``http`` raise them; a new code is a row of CODES, from which docs/how-to/serve.md
has its table.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from typing import Any

from ...ground.ending import LateError
from ...ground.errors import DeadlockError, InputError, MissingCostError, SimdevError

CODES = {
    "malformed": "No JSON object; NaN and duplicate keys are refused.",
    "invalid": "A field of the request is wrong or missing.",
    "unknown_method": "The method is not there.",
    "unknown_scenario": "Never there, or what was used later took its room: load it again.",
    "unknown_session": "Never there, or what was used later took its room: open it again.",
    "input": "The scenario, strategy or move cannot be.",
    "missing_cost": "Nothing tells the time of an op.",
    "deadlock": "Under the order of the strategy the step waits for itself.",
    "too_large": "A limit of bytes, of strategies in a batch, or by a guess of time.",
    "too_late": "A limit of time: --max-seconds of work (30), 10 s for the body of a request.",
    "unauthorized": "No token, or a wrong one (HTTP).",
    "forbidden": "Host or Origin is not this server on the loopback (HTTP).",
    "busy": "256 requests or 256 MiB at once, no turn in that time, or the server ends (HTTP).",
    "died": "The process that worked on it died, perhaps out of memory (HTTP).",
    "internal": "A bug in simdev; its traceback is on stderr.",
}
"""The codes of errors and their meanings."""


class RequestError(SimdevError):
    """A request that is refused, with one of CODES."""

    identity: str | int | None = None
    """The ``id`` of the request, where it has a valid one."""

    def __init__(self, problem: str, code: str = "invalid") -> None:
        self.problem, self.code = problem, code
        super().__init__(problem, code)

    def __str__(self) -> str:
        return self.problem


class HeavyError(Exception):
    """Raised for a request that is too heavy for this process; a copy of the process does it."""


def error_json(error: Exception | LateError) -> dict[str, Any]:
    """The ``error`` of a reply.

    An unexpected error goes to stderr with its traceback, and is "internal".
    """
    if isinstance(error, InputError):
        code = "missing_cost" if isinstance(error, MissingCostError) else "input"
    elif isinstance(error, RequestError):
        code, error = error.code, InputError(error.problem)
    elif isinstance(error, LateError):
        code, error = "too_late", InputError(str(error))
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
