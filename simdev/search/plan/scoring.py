"""Scoring plans: each step simulated, one device for each rank of the pipeline; here or in worker
processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ...costs.collectives import collective_model
from ...execution.engine import choose, simulate
from ...ground.errors import InputError, SimdevError
from ...ground.jobs import Died, finished, is_serial
from ...ground.units import PS_PER_SECOND
from ...lowering.hybrid import Timings, lower_hybrid
from ...nouns.models.large.roles import ROLES
from ...report.measures.costs import shares
from ...report.measures.training import BUBBLE, EXPOSED, Training, critical_rank
from ..sweep.answer import Memo, bug
from .question import Question
from .space import Plan

ENGINE = "compiled"  # SimPy gives the same answer, a hundred times slower
SIMPY_TASKS = 1_000_000  # up to so many it confirms the best
Record = Mapping[str, Any]
_memo = Memo(4)


class Scorer:
    """Scores the plans of a question; what is known of its clusters is kept."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._timings: dict[int, Timings] = {}

    def score(self, plan: Plan) -> dict[str, Any]:
        """The figures of a plan, ready for JSON: step (ps), whether it fits, peak (bytes),
        the terms of its critical rank (ps); or the reason why it cannot be simulated.
        """
        number, question = plan.setup.layout.cluster, self.question
        cluster, costs = question.clusters[number], question.costs[number]
        try:
            if number not in self._timings:
                self._timings[number] = Timings(collective_model(cluster), costs)
            timings = self._timings[number]
            options = timings.model, costs, True, timings
            task_graph, large = lower_hybrid(question.model, plan.parallelism, *options)
        except InputError as error:
            return {"reason": "; ".join(error.problems)}
        trace = simulate(task_graph, ENGINE)
        # Where groups differ all devices are there, and one of a rank may hold more than others.
        memories = trace.memory
        training = Training.of(trace, large)
        terms, step = training.terms, trace.end_ps / PS_PER_SECOND
        ranks = [stage.terms for stage in training.stages]
        critical = critical_rank(ranks)
        return {
            "step_ps": trace.end_ps,
            "fits": all(memory.overflow is None for memory in memories),
            "peak_bytes": max(memory.peak for memory in memories),
            "tokens_per_s": training.tokens_per_s,
            "mfu": training.mfu,
            "hfu": training.hfu,
            "peak_dtype": large.peak_dtype,
            "op_times": shares(large.rungs),
            "bubble": terms[BUBBLE] / step,
            "exposed_communication": sum(terms[ROLES[role]] for role in EXPOSED) / step,
            "critical_rank": critical,
            "critical_ps": dict(ranks[critical]),
        }


def confirm(question: Question, plan: Plan, row: Record) -> str:
    """Simulates a plan on all devices, by the reference engine up to SIMPY_TASKS: a sentence.

    Raises SimdevError where that differs from the figures of the plan, which is a bug, and
    InputError where all devices have too many tasks.
    """
    number = plan.setup.layout.cluster
    cluster, costs = question.clusters[number], question.costs[number]
    options = plan.parallelism, collective_model(cluster), costs, False
    task_graph, _ = lower_hybrid(question.model, *options)
    engine = "simpy" if len(task_graph.tasks) < SIMPY_TASKS else ENGINE
    trace = simulate(task_graph, engine)
    here = trace.end_ps, max(memory.peak for memory in trace.memory)
    if here != (row["step_ps"], row["peak_bytes"]):
        raise SimdevError(f"all devices give {here}, not {row['step_ps'], row['peak_bytes']}")
    return (
        f"Confirmed by {len(task_graph.tasks):,} tasks on all {len(cluster.workers):,} devices "
        f"({engine}): {trace.end_ps:,} ps."
    )


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """A plan with its question as bytes, for a worker."""

    name: str
    data: bytes
    plan: Plan


def score_parcel(parcel: Parcel) -> dict[str, Any]:
    """Score in a worker, which keeps the question for the next plan."""
    try:
        return _memo.once(parcel.name, lambda: Scorer(pickle.loads(parcel.data))).score(parcel.plan)
    except Exception as error:
        return {"bug": bug(error)}


class Scores:
    """Scores plans by ``n_jobs``, the rule of all verbs (``simdev.ground.jobs``). Raises InputError
    where ENGINE is missing.
    """

    def __init__(self, question: Question, n_jobs: int | None) -> None:
        choose(ENGINE, 0)
        self._serial, self._n_jobs = is_serial(n_jobs), n_jobs
        self._scorer = Scorer(question)
        self._data = b"" if self._serial else pickle.dumps(question)
        self._name = blake2b(self._data, digest_size=16).hexdigest()

    def of(self, plans: Mapping[int, Plan]) -> Iterator[tuple[int, Record]]:
        """The figures of plans by their numbers, as they are finished."""
        if self._serial or len(plans) == 1:
            yield from ((number, self._scorer.score(plan)) for number, plan in plans.items())
            return
        parcels = {str(n): Parcel(self._name, self._data, plan) for n, plan in plans.items()}
        for key, record in finished(score_parcel, parcels, self._n_jobs):
            if isinstance(record, Died):
                yield int(key), {"reason": record.reason}
            elif "bug" in record:  # here it would have been raised, too
                raise SimdevError(record["bug"])
            else:
                yield int(key), record
