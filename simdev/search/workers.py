"""Workers: repeated calls on one task, in this process or in several.

chains.py and ``simdev/learn/training.py`` use them. Jobs that are called once each (sweeps,
comparisons, plans) go through ``sweep/journal.py`` instead.
"""

from __future__ import annotations

import os
import pickle
import platform
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

from ..ground.errors import InputError
from ..ground.jobs import is_serial, require_joblib
from .sweep.journal import Memo
from .trial import Budget

KEPT = 4  # tasks that a process keeps
_tasks = Memo(KEPT)


class Workers:
    """Calls methods of a task, ``n_jobs`` at once (``simdev.ground.jobs``; None: as an enclosing
    ``parallel_config`` says).

    The task is pickled once, and goes to a process once. The result of a method may depend on its
    arguments and on how the task was made, but not on earlier calls: any process may run it. One
    pool serves all calls; it ends with the workers. ``budget`` counts CPU seconds of other
    processes.
    """

    def __init__(self, task: object, n_jobs: int | None = None, budget: Budget | None = None):
        self._task, self._jobs, self._budget = task, n_jobs, budget
        self.serial = is_serial(n_jobs)
        self._data = b"" if self.serial else pickle.dumps(task)
        self._name = blake2b(self._data, digest_size=16).digest()
        self._sent = False
        self._pool: Any = None

    def run(self, method: str, arguments: Iterable[Sequence[Any]]) -> list[Any]:
        """``task.method(*args)`` for each of ``arguments``, in this order.

        Raises the first error of a call, and InputError where a worker dies.
        """
        calls = list(arguments)
        if self.serial:
            return [getattr(self._task, method)(*call) for call in calls]
        answers = self._answers(method, dict(enumerate(calls)), b"" if self._sent else self._data)
        # A process that joined later does not know the task yet.
        missing = {i: calls[i] for i, answer in answers.items() if answer.missing}
        if missing:
            answers |= self._answers(method, missing, self._data)
        self._sent = True
        ordered = [answers[i] for i in range(len(calls))]
        for answer in ordered:
            if answer.error is not None:
                raise answer.error
        return [answer.value for answer in ordered]

    def _answers(
        self, method: str, calls: dict[int, Sequence[Any]], data: bytes
    ) -> dict[int, _Answer]:
        """The answers of a pool, by the keys of ``calls``."""
        joblib = require_joblib()
        sent = [joblib.delayed(_call)(self._name, data, method, call) for call in calls.values()]
        try:
            if self._pool is None:
                # Arrays are sent, not mapped from files: a mapped one cannot be written to. Calls
                # are few and long, so each is sent alone, and all at once.
                pool = joblib.Parallel(
                    self._jobs, max_nbytes=None, batch_size=1, pre_dispatch="all"
                )
                # Some backends, as Ray's, start processes for each call of a pool not entered.
                self._pool = pool.__enter__()
                weakref.finalize(self, pool.__exit__, None, None, None)
            answers: list[_Answer] = self._pool(sent)
        except Exception as error:
            self._pool = None
            # Workers return the errors of calls, so this is the death of a worker.
            reason = str(error).partition("\n")[0]
            raise InputError(f"n_jobs: {reason}") from None
        if self._budget is not None:
            elsewhere = [answer for answer in answers if answer.process != _this_process()]
            self._budget.add_cpu_seconds(sum(answer.seconds for answer in elsewhere))
        return dict(zip(calls, answers, strict=True))


@dataclass(frozen=True, slots=True)
class _Answer:
    """The value or error of a call, the process that answered, and its CPU seconds."""

    process: tuple[str, int]
    seconds: float = 0.0
    value: Any = None
    error: Exception | None = None
    missing: bool = False


def _this_process() -> tuple[str, int]:
    return platform.node(), os.getpid()


class _NotSentError(LookupError):
    """A process has to open a task that was not sent to it."""


def _opened(data: bytes) -> Any:
    """The task that was sent."""
    if not data:
        raise _NotSentError
    return pickle.loads(data)


def _call(name: bytes, data: bytes, method: str, arguments: Sequence[Any]) -> _Answer:
    """A call in a worker; ``missing`` where the worker does not know the task and was not
    sent it.
    """
    began, here = time.thread_time(), _this_process()
    try:
        task = _tasks.once(name, partial(_opened, data))
    except _NotSentError:
        return _Answer(here, missing=True)
    try:
        value = getattr(task, method)(*arguments)
    except Exception as error:
        return _Answer(here, time.thread_time() - began, error=error)
    return _Answer(here, time.thread_time() - began, value)
