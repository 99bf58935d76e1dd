"""Draws: step times and peaks of a scenario whose durations are drawn from their expected errors.

``draws_of`` takes a scenario that was lowered once (``execution.scenario.lowered``). Each draw
multiplies the durations of its tasks by factors (``execution/factors.py``) and executes them again:
in compiled code on all cores, or by an engine where steps repeat or tasks are lengthened (slowdown,
pauses). Draw k depends on the seed and on k alone. The bytes of tensors are not drawn
(``nouns/memory.py`` counts them exactly), so peaks vary only with the order of events.

``report/measures/uncertainty.py`` explains the draws. Tests: ``tests/oracle/test_draws.py``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from ..costs.drawn import drawn_factors
from ..execution.disturbances import noise, with_stalls
from ..execution.factors import DrawnFactors, Factors, together, with_factors
from ..execution.period import follow_one_another, step_time_ps
from ..execution.scenario import Lowered
from ..ground.errors import refuse
from ..lowering import iterated
from ..lowering.expected import ExpectedErrors
from ..nouns.draws import Draws, draws_problems
from ..nouns.taskgraph import Ints, TaskGraph

PART = 16  # draws


def errors_rule(
    errors_of: Callable[[TaskGraph], ExpectedErrors], seed: int, draws: int
) -> DrawnFactors:
    """The rule that draws the expected errors of costs, for ``draws`` draws."""

    def of_graph(task_graph: TaskGraph) -> Factors:
        errors = errors_of(task_graph)
        drawn = drawn_factors(errors.sources, seed, draws)
        return lambda draw: errors.factors(drawn[draw])

    return of_graph


def draws_of(
    question: Lowered,
    draws: int,
    seed: int = 0,
    more: Sequence[DrawnFactors] = (),
    n_jobs: int = -1,
    watch: Callable[[Sequence[Any]], Sequence[Any]] = lambda parts: parts,
) -> Draws:
    """Draws of a lowered scenario, by the errors of its costs and ``more`` rules.

    They run on ``n_jobs`` threads (-1: as many as cores); ``watch`` may show progress. Raises
    InputError, DeadlockError.
    """
    refuse(draws_problems(draws, seed))
    disturbances = question.scenario.disturbances
    noises = () if disturbances is None else (noise(disturbances),)
    rules = together((errors_rule(question.expected_errors, seed, draws), *noises, *more))
    drawn = _Drawn(question, rules)
    jobs = (os.cpu_count() or 1) if n_jobs < 0 else max(n_jobs, 1)
    # Parts of a few draws, so that neither a slow thread nor Ctrl-C has to wait long for one.
    parts = np.array_split(np.arange(draws), min(max(8 * jobs, draws // PART), draws))
    ((answer_ps, answer_peaks),) = drawn.answers([None])
    with ThreadPoolExecutor(jobs) as pool:
        parts_drawn = [pool.submit(drawn.answers, part.tolist()) for part in parts]
        try:
            answers = [answer for future in watch(parts_drawn) for answer in future.result()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    step_ps, peaks = zip(*answers, strict=True)
    there, columns = drawn.graph(1), (np.array(step_ps, np.int64), np.stack(peaks))
    erring = len(question.expected_errors(there).sources) + len(noises)
    return Draws(
        seed, erring, there.devices, there.capacity, answer_ps, answer_peaks, *columns
    )  # fmt: skip


Answer = tuple[int, Ints]
"""The step time in ps, and the peak bytes of every device."""


class _Graph(NamedTuple):
    """A task graph of one or more rounds, and the factors of its tasks."""

    task_graph: TaskGraph
    factors: Factors


class _Drawn:
    """The draws of a question; several threads may call it."""

    def __init__(self, question: Lowered, rule: DrawnFactors) -> None:
        self.question, self.rule = question, rule
        self._lock, self._graphs = threading.Lock(), dict[int, _Graph]()
        self._room = threading.local()

    def graph(self, rounds: int) -> TaskGraph:
        """The task graph of ``rounds`` rounds, with durations as lowered."""
        return self._graph(rounds).task_graph

    def _graph(self, rounds: int) -> _Graph:
        with self._lock:
            if rounds not in self._graphs:
                task_graph = iterated(self.question.step, rounds)
                self._graphs[rounds] = _Graph(task_graph, self.rule(task_graph))
            return self._graphs[rounds]

    @cached_property
    def engine(self) -> str:
        """The engine: under "auto" compiled where Numba is installed, for it runs without the
        GIL.
        """
        engine = self.question.scenario.engine
        if engine == "auto":
            engine = "simpy" if find_spec("numba") is None else "compiled"
        return engine

    @cached_property
    def is_plain(self) -> bool:
        """Whether a draw is one execution of one task graph."""
        question = self.question
        repeats = follow_one_another(question.strategy, question.scenario.steps)
        disturbances = question.scenario.disturbances
        pauses = disturbances is not None and disturbances.pauses is not None
        stretched = pauses or self.graph(1).is_stretched
        return not repeats and not stretched and self.engine == "compiled"

    def answers(self, draws: Sequence[int | None]) -> list[Answer]:
        """The answers of these draws, in turn. A draw of None has the durations as lowered, with
        the scenario's disturbances, if any.
        """
        if not self.is_plain or (None in draws and self.question.scenario.disturbances is not None):
            return [self._in_full(draw) for draw in draws]
        if not hasattr(self._room, "plain"):
            from .redrawn import Redrawn

            self._room.plain = Redrawn(self.graph(1))
        factors_of = self._graph(1).factors
        factors = (None if draw is None else factors_of(draw) for draw in draws)
        answers = zip(draws, self._room.plain.answers(factors), strict=True)
        return [self._in_full(draw) if answer is None else answer for draw, answer in answers]

    def _in_full(self, draw: int | None) -> Answer:
        """The answer of a draw by an engine."""
        drawn = None if draw is None else partial(self._changed, draw)
        trace = self.question.trace(drawn, self.engine)
        return step_time_ps(trace), np.array([memory.peak for memory in trace.memory], np.int64)

    def _changed(self, draw: int, rounds: int) -> TaskGraph:
        graph, disturbances = self._graph(rounds), self.question.scenario.disturbances
        changed = with_factors(graph.task_graph, graph.factors(draw))
        return changed if disturbances is None else with_stalls(changed, disturbances, draw)
