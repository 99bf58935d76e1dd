"""Factors of durations: the same step with other durations, for what-ifs and for draws.

Durations are changed in the task graph after lowering and repetition, hosts included, but before
the simulation lengthens them (``collectives.slowdown``) or makes them depend on the schedule
(credit). ``period.simulate_lowered`` takes a function that makes such task graphs.

A rule that draws durations is a ``DrawnFactors``: from a task graph it makes a function that
returns, for the number of a draw, a factor for each task. The factors of several rules are
multiplied (``together``). ``oracle/draws.py`` draws the errors of costs,
``execution/disturbances.py`` the noise of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..ground.units import MAX_PS
from ..nouns.taskgraph import Bools, Floats, Ints, TaskGraph

Factors = Callable[[int], Floats]
"""A function from the number of a draw (from 0) to a factor > 0 for each task of a task graph. It
may be called from several threads, and must depend on nothing but the number."""

DrawnFactors = Callable[[TaskGraph], Factors]
"""A rule of drawn durations. Its task graph may hold several steps (``TaskGraph.step_begins``), and
dispatches of hosts after all other tasks."""


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
    """Times (ps) or bytes, multiplied by their factors and rounded up; a factor of 1 changes
    nothing. A larger product than MAX_PS, which no task graph accepts, becomes MAX_PS.
    """
    times: Ints = np.minimum(np.ceil(column * factor), MAX_PS).astype(np.int64)
    # A float has 53 bits: the product would change the last picoseconds of times over an hour.
    times = np.where(factor == 1, column, times)
    return times


def with_factors(task_graph: TaskGraph, factor: Floats) -> TaskGraph:
    """The task graph whose tasks take ``factor`` times as long: their durations and lags are
    scaled. A flow takes as long as its share of the links demands, so its load is scaled too.
    """
    tasks = task_graph.tasks
    changed = replace(
        tasks,
        duration=scaled(tasks.duration, factor),
        lag=scaled(tasks.lag, factor),
        load=scaled(tasks.carried, factor) if tasks.flow.any() else None,
    )
    return replace(task_graph, tasks=changed)


def of_step(task_graph: TaskGraph, column: Bools) -> Bools:
    """Reduce marks of the tasks of several steps to marks of one complete step, whose dispatches
    come last.
    """
    first, steps = task_graph.first_dispatch, task_graph.steps
    behind = column[first : first + (len(column) - first) // steps]
    return np.concatenate((column[task_graph.whole_step], behind))


def in_steps(task_graph: TaskGraph, column: Bools) -> Bools:
    """Repeat marks of one step's tasks (as ``of_step`` returns them) for all steps of a task
    graph.
    """
    begins, first, steps = task_graph.step_begins, task_graph.first_dispatch, task_graph.steps
    # A step of a round may have fewer tasks than the complete step: it lacks the last ones.
    place = np.arange(first) - np.repeat(begins[:-1], np.diff(begins))
    behind = column[len(column) - (len(task_graph.tasks) - first) // steps :]
    return np.concatenate((column[place], np.tile(behind, steps)))
