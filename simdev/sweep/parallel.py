"""Answering many questions: here, one after another, or wherever joblib's backend takes them.

joblib schedules and Loky, Dask or Ray carry out; nothing is scheduled here. The backend is the one
of an enclosing ``joblib.parallel_config``, else processes of this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ..errors import InputError, SimdevError
from .answer import Answer, Known, answer, failed
from .question import Question

ROUND = 8
_known = Known()


def answer_here(question: Question) -> Answer:
    """Answer in a worker, which keeps what it has read for the next question."""
    return answer(question, _known)


def answers(questions: Iterable[Question], n_jobs: int | None = None) -> Iterator[Answer]:
    """The answers in the order in which they are finished.

    ``n_jobs`` is joblib's: so many at once, -1 on all cores; None (the default) is what an
    enclosing ``joblib.parallel_config`` says, else one. A scenario whose worker dies is tried once
    more, alone. Raises InputError.
    """
    if _is_serial(n_jobs):
        known = Known()
        yield from (answer(question, known) for question in questions)
        return
    left = {question.key: question for question in questions}
    while left:
        sent: list[Question] = []
        try:
            for found in _pool(left.values(), n_jobs, sent):
                del left[found.key]
                yield found
        except SimdevError:
            raise
        except Exception as error:
            # Workers tell what goes wrong in a scenario, so this is the death of a worker: which
            # question was it?
            if not sent:
                raise InputError(f"n_jobs: {error}") from None
            for question in [one for one in sent if one.key in left]:
                yield _alone(left.pop(question.key), n_jobs)


def _is_serial(n_jobs: int | None) -> bool:
    if n_jobs is not None and (
        isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or n_jobs == 0
    ):
        raise InputError(f"n_jobs: must be a whole number, not 0, got {n_jobs!r}")
    if n_jobs is not None:
        return n_jobs == 1
    if sys.modules.get("joblib") is None:
        return True
    from joblib.parallel import get_active_backend

    backend, jobs = get_active_backend()
    return jobs in (None, 1) and type(backend).__module__.startswith("joblib._parallel_backends")


def _pool(
    questions: Iterable[Question], n_jobs: int | None, sent: list[Question]
) -> Iterator[Answer]:
    """The answers of a pool of workers; ``sent`` gets the questions that left."""
    try:
        from joblib import Parallel, delayed, effective_n_jobs
        from joblib.parallel import get_active_backend
    except ImportError:
        raise InputError("n_jobs: more than one needs joblib; install simdev[parallel]") from None

    def calls() -> Iterator[Any]:
        for question in list(questions):
            sent.append(question)
            yield delayed(answer_here)(question)

    if get_active_backend()[0].supports_return_generator:
        yield from Parallel(n_jobs=n_jobs, return_as="generator_unordered")(calls())
        return
    # Ray's backend hands its answers back all at once, so it gets a few for each worker at a time.
    with Parallel(n_jobs=n_jobs) as parallel:
        left = calls()
        while some := list(islice(left, ROUND * effective_n_jobs(n_jobs))):
            yield from parallel(some)


def _alone(question: Question, n_jobs: int | None) -> Answer:
    try:
        return next(_pool([question], n_jobs, []))
    except SimdevError:
        raise
    except Exception as error:
        told = str(error).partition("\n")[0]
        return Answer(
            question.key, failed(f"its worker died, perhaps out of memory: {told}"), lasting=False
        )
