"""Parallel work, and the meaning of every ``n_jobs``. The searches, comparisons and sweeps of
``simdev.search`` use it.

joblib schedules the calls, and Loky, Dask or Ray run them. The backend is the one of an enclosing
``joblib.parallel_config``, else processes of this machine.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from numbers import Integral
from typing import Any, TypeVar

from .errors import InputError, SimdevError, install_line

T = TypeVar("T")
R = TypeVar("R")
MOST = 1024  # processes: each takes memory and seconds to start, and more is a mistake
ROUND = 8  # calls for each worker of a backend that hands its answers back all at once


@dataclass(frozen=True, slots=True)
class Died:
    """The answer to a call whose worker died, and died again when the call was tried alone."""

    reason: str


@contextmanager
def uncollected() -> Iterator[None]:
    """Stops garbage collection in a block that makes millions of objects and no cycles: Python
    would look through all of them again and again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def is_serial(n_jobs: int | None) -> bool:
    """Whether all work is done in this process: ``n_jobs`` is 1, or None without an enclosing
    ``parallel_config`` that says otherwise (it may name a cluster).

    Raises InputError for an invalid number of jobs.
    """
    if n_jobs is not None:
        jobs: object = n_jobs  # NumPy's whole numbers do too
        if isinstance(jobs, bool) or not isinstance(jobs, Integral) or jobs == 0:
            raise InputError(f"n_jobs: must be a whole number, not 0, got {n_jobs!r}")
        if int(jobs) > MOST:
            raise InputError(f"n_jobs: must be at most {MOST:,}, got {n_jobs!r}")
        return bool(jobs == 1)
    # If joblib is not imported, it is not configured either.
    if sys.modules.get("joblib") is None:
        return True
    from joblib.parallel import get_active_backend

    backend, count = get_active_backend()
    return count in (None, 1) and type(backend).__module__.startswith("joblib._parallel_backends")


def working(n_jobs: int | None) -> int:
    """The number of processes that work at once. Raises InputError."""
    return 1 if is_serial(n_jobs) else int(require_joblib().effective_n_jobs(n_jobs))


def require_joblib() -> Any:
    """The module ``joblib``. Raises InputError where it is not installed."""
    try:
        return import_module("joblib")
    except ImportError:
        reason = f"more than one needs joblib: {install_line('parallel')}"
        raise InputError(f"n_jobs: {reason}") from None


def finished(
    call: Callable[[T], R], items: Mapping[str, T], n_jobs: int | None
) -> Iterator[tuple[str, R | Died]]:
    """Pairs (key, answer) of ``call`` on every item in worker processes, in the order in which they
    finish.

    If a worker dies, every item then under way is tried once more, alone. A call must raise nothing
    but SimdevError, which ends all calls. Raises InputError.
    """
    left = dict(items)
    if n_jobs is not None:
        # A backend may start all of its workers, though most would have nothing to do. At least
        # two, since a single worker would be this process itself.
        n_jobs = min(int(n_jobs), max(len(left), 2))
    while left:
        sent: list[str] = []
        try:
            for key, answer in _pool(call, left, n_jobs, sent):
                del left[key]
                yield key, answer
        except SimdevError:
            raise
        except Exception as error:
            # Calls raise nothing else, so a worker has died.
            if not sent:
                raise InputError(f"n_jobs: {error}") from None
            for key in [key for key in sent if key in left]:
                yield key, _alone(call, left.pop(key), n_jobs)


def _pool(
    call: Callable[[T], R], items: Mapping[str, T], n_jobs: int | None, sent: list[str]
) -> Iterator[tuple[str, R]]:
    """The answers of a pool of workers; keys of items are added to ``sent`` when they are sent."""
    require_joblib()
    from joblib import Parallel, delayed, effective_n_jobs
    from joblib.parallel import get_active_backend

    def calls() -> Iterator[Any]:
        # A copy: the caller takes items away while they are answered.
        for key, item in list(items.items()):
            sent.append(key)
            yield delayed(_keyed)(call, key, item)

    if get_active_backend()[0].supports_return_generator:
        answers = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(calls())
        try:
            for answer in answers:  # noqa: UP028 (to be closed below, and not before)
                yield answer
        finally:
            # joblib warns of lost work where the caller stops early, which the caller knows.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                answers.close()
        return
    # Ray's backend hands its answers back all at once, so it gets a few for each worker at a time.
    with Parallel(n_jobs=n_jobs) as parallel:
        waiting = calls()
        while some := list(islice(waiting, ROUND * effective_n_jobs(n_jobs))):
            yield from parallel(some)


def _keyed(call: Callable[[T], R], key: str, item: T) -> tuple[str, R]:
    return key, call(item)


def _alone(call: Callable[[T], R], item: T, n_jobs: int | None) -> R | Died:
    """The second try of an item, alone in a pool."""
    try:
        return next(_pool(call, {"": item}, n_jobs, []))[1]
    except SimdevError:
        raise
    except Exception as error:
        return Died(f"its worker died, perhaps out of memory: {str(error).partition(chr(10))[0]}")
