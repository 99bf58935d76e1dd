"""Ends of a process before its work is done: by SIGTERM, at a deadline, or with its parent.

The command line is ``terminable``; the server's processes and ranks of ``capture`` use the rest.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, NoReturn

GRACE = 3.0  # seconds after SIGTERM for the cleanup of ``with`` and ``finally``
LOOK = 0.5  # seconds between two checks of the clock and of the parent
TERMINATED = 128 + 15


class TerminatedError(BaseException):
    """SIGTERM came. No ``except Exception`` catches it, and no search mistakes it for Ctrl-C, after
    which a search still checks its best answer.
    """


class LateError(BaseException):
    """A deadline has passed; no ``except Exception`` catches it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(seconds)

    def __str__(self) -> str:
        return f"not done within {self.seconds:g} s"


class _Ending:
    """The state of this process: whether SIGTERM is still to be raised (``pending``), whether the
    end was announced (``said``), whether a timer rings, the deadline that runs, and the unfinished
    files and folders.
    """

    def __init__(self) -> None:
        self.pending, self.said, self.rings = True, False, False
        self.seconds = self.end = inf
        self.parent: int | None = None
        self.unfinished = set[str]()


_ending = _Ending()


def terminable() -> None:
    """Makes SIGTERM raise TerminatedError in the main thread from now on.

    If the process still runs GRACE seconds later, it is ended with its children. (Python looks at
    signals between two of its instructions, and a compiled loop is a single one.)
    """
    if not hasattr(signal, "set_wakeup_fd"):
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # Python writes the number of a signal here at once, even while the main thread is busy.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, _raise)
    os.register_at_fork(after_in_child=default_signals)
    sys.unraisablehook = _unraisable
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()


def default_signals() -> None:
    """Makes SIGTERM end this process at once: for a child, or for a process that handles its end
    itself.
    """
    _ending.rings = False  # a child has no timer
    with suppress(ValueError):  # on another thread than the main one
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(number: int, frame: object) -> None:
    # Only once: a second exception would interrupt the cleanup.
    if _ending.pending:
        _ending.pending = False
        raise TerminatedError


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """Raises SIGTERM's error again after it was lost, as errors in destructors are; deadlines ring
    again by themselves.
    """
    if lost.exc_type is TerminatedError:
        _ending.pending = True
    elif lost.exc_type is not LateError:
        sys.__unraisablehook__(lost)


def _watch(reading: int) -> None:
    while signal.SIGTERM not in os.read(reading, 64):
        pass
    end, main = time.monotonic() + GRACE, threading.main_thread().ident or 0
    while time.monotonic() < end:
        time.sleep(0.1)
        if _ending.pending:
            signal.pthread_kill(main, signal.SIGTERM)
    leave()


def say_terminated() -> int:
    """Tell on stderr, once, that SIGTERM ended the work; returns the exit code."""
    if not _ending.said:
        _ending.said = True
        with suppress(OSError, ValueError):
            sys.stderr.write("terminated\n")
            sys.stderr.flush()
    return TERMINATED


@contextmanager
def unfinished(path: str) -> Iterator[None]:
    """Registers a file or folder that is removed if SIGTERM ends this process within the block,
    even where no ``finally`` runs any more.
    """
    _ending.unfinished.add(path)
    try:
        yield
    finally:
        _ending.unfinished.discard(path)


def leave() -> NoReturn:
    """End this process and its children after SIGTERM without Python's own shutdown, which would
    free memory that compiled code in other threads still uses.
    """
    say_terminated()
    end_children()
    for path in tuple(_ending.unfinished):
        with suppress(OSError):
            os.unlink(path) if os.path.isfile(path) else shutil.rmtree(path)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(TERMINATED)


def end_children() -> None:
    """Send SIGTERM to the children of this process, as far as the system lists them (Linux)."""
    mine = str(os.getpid())
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            # The name of a process stands in parentheses, and may hold any character.
            if place.read_text().rpartition(")")[2].split()[1] == mine:
                os.kill(int(place.parent.name), signal.SIGTERM)


class Deadline:
    """A context that raises LateError in its block ``seconds`` after the begin (at most LOOK
    later), and ends the process where ``parent`` is no longer its parent.

    It works on the main thread, where the system has interval timers; elsewhere there is no
    deadline. Deadlines do not nest.
    """

    def __init__(self, seconds: float, parent: int | None = None) -> None:
        self.seconds, self.parent = seconds, parent

    def __enter__(self) -> None:
        if (self.seconds == inf and self.parent is None) or not _can_ring():
            return
        _ending.seconds, _ending.end = self.seconds, time.monotonic() + self.seconds
        _ending.parent = self.parent
        if not _ending.rings:
            _ending.rings = True
            signal.signal(signal.SIGALRM, _ring)
            signal.setitimer(signal.ITIMER_REAL, LOOK, LOOK)
            atexit.register(_rest)  # Python gives up its handlers before it ends

    def __exit__(self, *_: Any) -> None:
        _ending.end, _ending.parent = inf, None


def _can_ring() -> bool:
    return threading.get_ident() == threading.main_thread().ident and hasattr(signal, "setitimer")


def _rest() -> None:
    atexit.unregister(_rest)
    _ending.rings = False
    signal.setitimer(signal.ITIMER_REAL, 0)


def _ring(number: int, frame: object) -> None:
    # The timer keeps ringing, which costs less than a new timer for each request, and repeats an
    # exception that was lost, in a destructor say.
    if _ending.parent is not None and os.getppid() != _ending.parent:
        os._exit(1)
    if _ending.end == inf and _ending.parent is None:
        _rest()
    elif time.monotonic() >= _ending.end:
        raise LateError(_ending.seconds)
