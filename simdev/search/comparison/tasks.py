"""Tasks: one run of a comparison to be made, here or in a worker process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...execution.scenario import fingerprint
from ...nouns.cluster import Cluster, Device
from ...nouns.graph import Graph, Op, Tensor
from ...nouns.strategy import Strategy
from ...oracle import Oracle
from ..budget import Budget
from ..learners import LearnerOptions, requested
from ..methods import METHODS
from ..run import search, search_oracle
from ..sweep.answer import Memo, bug
from ..sweep.point import sources_version
from ..trial import REFUSED
from .questions import references_of
from .runs import Entrant, record_of

# What takes no part in a search; sources that are not named here count.
APART = r"(commands|formats|measure|report|execution/check|learn/env|search/(comparison|sweep))/"
REHEARSED = 8  # evaluations of a rehearsal
_memo = Memo(4)


@dataclass(frozen=True, slots=True)
class Terms:
    """What every method of a comparison is granted: its limits, preparations (None: its own), and
    the options of learners.
    """

    budget: int | None = None
    seconds: float | None = None
    prepare: tuple[str, ...] | None = None
    settings: object | None = None
    warm: str | None = None

    def options(self, entrant: Entrant) -> LearnerOptions:
        """What a method is told: settings and a start are of learners, unless the method itself was
        listed with a start.
        """
        if METHODS[entrant.method].learner is None:
            return LearnerOptions(warm=entrant.warm)
        # A search of its own has one process: then CPU seconds of methods can be compared.
        return LearnerOptions(self.settings, entrant.warm or self.warm, n_jobs=1)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One method with one seed on the question of a name."""

    question: Hashable
    entrant: Entrant
    seed: int
    terms: Terms

    def key(self, digest: str) -> str:
        """What its record is kept under, for a question of this digest: it changes with all that
        may change the answer, the sources of simdev among them.
        """
        return fingerprint((sources_version(APART), digest, self.entrant, self.seed, self.terms))


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """A task with its question as bytes, for a worker."""

    name: str
    data: bytes
    task: Task


def answer(
    oracle: Oracle, given: Strategy, task: Task, progress: Callable[[int], object] | None = None
) -> dict[str, Any]:
    """The record of a task's result, or {"reason": why there is none}."""
    method, terms = task.entrant.method, task.terms
    rehearse(method)
    try:
        request = requested(method, terms.options(task.entrant))
        limits = Budget(terms.budget, terms.seconds, task.seed, progress)
        # What splits ops takes no preparation: there it is asked the graph as it is.
        prepare = None if METHODS[method].splits else terms.prepare
        result = search_oracle(oracle, given, method, limits, prepare, request)
        return record_of(oracle, result)
    except REFUSED as error:
        return {"reason": str(error)}
    except Exception as error:
        return {"reason": bug(error)}


def answer_parcel(parcel: Parcel) -> dict[str, Any]:
    """Answer in a worker, which keeps the question for the next task."""
    oracle, given = _memo.once(parcel.name, lambda: _unpacked(parcel.data))
    return answer(oracle, given, parcel.task)


def _unpacked(data: bytes) -> tuple[Oracle, Strategy]:
    oracle, given = pickle.loads(data)
    references_of(oracle, given)  # looks up costs, which no method shall pay for
    return oracle, given


def is_lasting(record: Mapping[str, Any]) -> bool:
    """Whether a record is kept in a journal: what was refused may be for the want of a package, and
    is refused again in no time.
    """
    return "reason" not in record and record["provenance"]["ended"] != "interrupted"


@cache
def rehearse(method: str) -> None:
    """Run a method on a toy, once a process, so that no run pays for what is loaded once: compiled
    loops, solvers, torch.
    """
    ops = (Op("a", outputs=(Tensor(1),), time=1), Op("b", inputs=("a",), time=1))
    devices = [Device("g0"), Device("g1")]
    toy = Oracle(Graph("toy", ops), Cluster.all_to_all("two", devices, bandwidth=1))
    n_jobs = None if METHODS[method].learner is None else 1
    try:
        ended = search(toy, method, REHEARSED, seconds=1.0, n_jobs=n_jobs).provenance["ended"]
    except Exception:  # what is wrong is told of the question
        return
    if ended == "interrupted":
        raise KeyboardInterrupt
