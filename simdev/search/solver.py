"""SciPy's solvers, where they are installed, and calls into them, which look neither at signals
nor, at all times, at their limit in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from threading import Event, Thread
from typing import Any, TypeVar

from ..ground.errors import SimdevError, install_line

T = TypeVar("T")
LOOK = 0.2  # seconds between two looks: on Windows a wait without a limit is deaf to Ctrl-C
GRACE = 1.0  # seconds beyond its limit that a solver may take to hand over what it has


def scipy(who: str) -> tuple[Any, Any]:
    """SciPy's modules ``optimize`` and ``sparse``. Raises SimdevError where ``who`` needs SciPy in
    vain.
    """
    try:
        from scipy import optimize, sparse
    except ModuleNotFoundError:
        raise SimdevError(f"{who} scipy: {install_line('solvers')}") from None
    return optimize, sparse


def attended(call: Callable[[], T], seconds: float = inf) -> T | None:
    """What ``call`` returns, None where it takes longer than ``seconds`` and GRACE; Ctrl-C ends it
    at once.

    It runs in a thread, and has to release the GIL. Nothing can stop it from outside: where it is
    waited for no more, it goes on unheard until it ends by itself, or the process does.
    """
    answers: list[T] = []
    failed: list[BaseException] = []
    done, end = Event(), time.perf_counter() + seconds + GRACE

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # raised below, in the thread that waits
            failed.append(error)
        finally:
            done.set()

    Thread(target=run, daemon=True).start()
    while not done.wait(LOOK):
        if time.perf_counter() > end:
            return None
    if failed:
        raise failed[0]
    return answers[0]
