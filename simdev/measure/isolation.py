"""Runs work in a child process, whose death is an error of that work and not the end of the run."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import warnings
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def isolated(work: Callable[[], Result]) -> Result:
    """What ``work`` returns, run in a forked child that sees all that this process has.

    Raises RuntimeError where it raised anything, or where the child died. Where a system cannot
    fork, the work runs in this process. A child has no CUDA device: its context does not survive a
    fork.
    """
    if not hasattr(os, "fork"):
        return work()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns of threads that the child does not have; measuring uses one.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(work, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        raise RuntimeError(f"the process that measured it died ({name})")
    if not answer:
        raise RuntimeError(f"the process that measured it ended with code {status >> 8}")
    # What the child wrote is this program's own.
    fine, result = pickle.loads(answer)
    if not fine:
        raise RuntimeError(result)
    return result  # type: ignore[no-any-return]


def _answer(work: Callable[[], object], writing: int) -> None:
    """The child's part: writes the result and ends, without the exit of a Python program, which
    would flush the parent's files a second time.
    """
    faulthandler.disable()
    try:
        try:
            answer = pickle.dumps((True, work()))
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            answer = pickle.dumps((False, lines[0]))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
    except BaseException:
        os._exit(1)
    os._exit(0)
