"""How a process ends before its work is done: by SIGTERM, at a deadline, or with its parent.

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

GRACE = 3.0  # seconds from SIGTERM for what ``with`` and ``finally`` have to put away
LOOK = 0.5  # seconds between two looks at the clock and at the parent
TERMINATED = 128 + 15


class TerminatedError(BaseException):
    """SIGTERM came. No ``except Exception`` holds it, and no search takes it for Ctrl-C, upon which
    it still judges its best answer.
    """


class LateError(BaseException):
    """A deadline has passed; no ``except Exception`` holds it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(seconds)

    def __str__(self) -> str:
        return f"not done within {self.seconds:g} s"


class _Ending:
    """The state of this process: whether SIGTERM is still to be raised, whether it was said that
    the process ends, whether a timer rings, the deadline that runs, and the files and folders that
    are not finished.
    """

    def __init__(self) -> None:
        self.pending, self.said, self.rings = True, False, False
        self.seconds = self.end = inf
        self.parent: int | None = None
        self.unfinished = set[str]()


_ending = _Ending()


def terminable() -> None:
    """From now on SIGTERM raises TerminatedError in the main thread.

    Where the process is still there GRACE seconds later (Python looks at signals between two of its
    instructions, and a compiled loop is a single one) it ends as it is, and its children with it.
    """
    if not hasattr(signal, "set_wakeup_fd"):
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # Python writes the number of a signal here at once, whatever the main thread is busy with.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, _raise)
    os.register_at_fork(after_in_child=default_signals)
    sys.unraisablehook = _unraisable
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()


def default_signals() -> None:
    """SIGTERM ends this process at once: a child, or one that has a way of its own to end."""
    _ending.rings = False  # a child has no timer
    with suppress(ValueError):  # on another thread than the main one
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(number: int, frame: object) -> None:
    # Once: a second one would cut short what is put away.
    if _ending.pending:
        _ending.pending = False
        raise TerminatedError


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """Raise SIGTERM anew, as deadlines are: an exception raised in a destructor is lost."""
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
    """A file or folder that goes where this process ends amid the block by SIGTERM, even where no
    ``finally`` runs any more.
    """
    _ending.unfinished.add(path)
    try:
        yield
    finally:
        _ending.unfinished.discard(path)


def leave() -> NoReturn:
    """End this process and its children after SIGTERM, whatever its threads still do: Python would
    take memory from under compiled code that runs.
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
    """Raises LateError in its block ``seconds`` after the begin, LOOK later at the latest, and ends
    the process where ``parent`` is its parent no more.

    Only on the main thread, and where the system has interval timers; elsewhere the block takes as
    long as it takes. Deadlines do not nest.
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
    # It rings again and again, which costs a request less than a timer of its own, until there is
    # no deadline; and an exception in a destructor, say, is lost.
    if _ending.parent is not None and os.getppid() != _ending.parent:
        os._exit(1)
    if _ending.end == inf and _ending.parent is None:
        _rest()
    elif time.monotonic() >= _ending.end:
        raise LateError(_ending.seconds)
