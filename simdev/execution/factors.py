"""Factors of durations: the same step with other durations, for what-ifs and for draws.

A task graph takes durations as they are given. So they are changed in what was lowered and
repeated, hosts included, before anything stretches them (``collectives.slowdown``) or depends on
the schedule (credit): ``period.simulate_lowered`` takes a function that makes such task graphs.

A rule that draws durations is a ``DrawnFactors``: of a task graph it makes a function that gives,
for the number of a draw, a factor for each task. The factors of several rules are multiplied
(``together``). ``oracle/draws.py`` draws the errors of costs; what else may vary from step to step
is another rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..ground.units import MAX_PS
from ..nouns.taskgraph import Bools, Floats, Ints, TaskGraph

Factors = Callable[[int], Floats]
"""By the number of a draw (from 0) a factor for each task of a task graph, > 0. It may be called
from several threads, and must depend on nothing but the number."""

DrawnFactors = Callable[[TaskGraph], Factors]
"""A rule of drawn durations. The task graph may hold several steps (``TaskGraph.step_begins``), and
dispatches of hosts behind all other tasks."""


def together(rules: Sequence[DrawnFactors]) -> DrawnFactors:
    """The rule whose factors are the products of those of all rules."""

    def of_graph(task_graph: TaskGraph) -> Factors:
        each = [rule(task_graph) for rule in rules]

        def factors(draw: int) -> Floats:
            product = np.ones(len(task_graph.tasks))
            for of_draw in each:
                product = product * of_draw(draw)
            return product

        return factors

    return of_graph


def scaled(column: Ints, factor: Floats) -> Ints:
    """Times (ps) or bytes times their factors, rounded up; with a factor of 1 exactly as they
    are. Beyond MAX_PS it is MAX_PS, which no task graph takes.
    """
    times: Ints = np.minimum(np.ceil(column * factor), MAX_PS).astype(np.int64)
    # A float holds no more digits: beyond an hour a time would change by its last picoseconds.
    times = np.where(factor == 1, column, times)
    return times


def with_factors(task_graph: TaskGraph, factor: Floats) -> TaskGraph:
    """The task graph whose tasks take ``factor`` times as long: duration, and the lag of what is
    sent. Of a flow, which shares its links, the bytes are scaled: it then takes that share more of
    them.
    """
    tasks = task_graph.tasks
    changed = replace(
        tasks,
        duration=scaled(tasks.duration, factor),
        lag=scaled(tasks.lag, factor),
        bytes=np.where(tasks.flow, scaled(tasks.bytes, factor), tasks.bytes),
    )
    return replace(task_graph, tasks=changed)


def of_step(task_graph: TaskGraph, column: Bools) -> Bools:
    """Marks of the tasks of any number of steps, for those of one step that has every task, with
    its dispatches behind.
    """
    first, steps = task_graph.first_dispatch, task_graph.steps
    behind = column[first : first + (len(column) - first) // steps]
    return np.concatenate((column[task_graph.whole_step], behind))


def in_steps(task_graph: TaskGraph, column: Bools) -> Bools:
    """Marks of one step's tasks (``of_step``), for those of all steps of a task graph."""
    begins, first, steps = task_graph.step_begins, task_graph.first_dispatch, task_graph.steps
    # Steps of a round that lack tasks lack the last of them.
    place = np.arange(first) - np.repeat(begins[:-1], np.diff(begins))
    behind = column[len(column) - (len(task_graph.tasks) - first) // steps :]
    return np.concatenate((column[place], np.tile(behind, steps)))
