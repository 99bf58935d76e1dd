"""Steps that follow one another: simulate them until they repeat, and tell their period.

Execution contract, rule 10: E(k) is the last finish or release of step k. Where every start repeats
q steps later, up to one shift, the period is (E(k + q) - E(k)) / q. Two equal periods prove
nothing: what is compared is the whole state. When the last step simulated begins, all that runs,
waits and is still to come follows from when the tasks of the steps that have not ended became
ready, started and finished. If all of them did so as much later than their likes q steps before,
the state has been there before, and a deterministic simulation goes on as it did then. No step that
was not simulated can have played a part by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np

from .engine import simulate
from .lowering import LoweredStep, Prepared, credited, iterated, lower_step, most_steps
from .strategy import Strategy, Sync
from .taskgraph import Ints, TaskGraph
from .trace import Trace
from .units import PS_PER_SECOND, format_seconds

STEPS = ("once", "repeated")
"""What a scenario may ask for: one step, or steps that follow one another."""

COUNTS = (4, 8, 16, 32, 52)
"""How many steps to simulate, until they repeat; the last leaves 50 periods."""

# Steps whose hosts get further ahead are followed to so many, or so many tasks: for seconds.
MOST_AHEAD, WORTH_FOLLOWING = 1664, 200_000

SLACK = 1e-9  # relative, of starts under fair links, whose rates are rounded
PERIODS_SHOWN = 8


def follow_one_another(strategy: Strategy, steps: str) -> bool:
    """Whether steps are simulated one after another; a policy of synchronisation always does so."""
    return steps == "repeated" or isinstance(strategy.sync, Sync)


def simulate_strategy(
    prepared: Prepared, strategy: Strategy, engine: str = "auto", steps: str = STEPS[0]
) -> tuple[Trace, LoweredStep]:
    """The trace of a strategy, and the step that it executes, once or several times (STEPS).

    Raises InputError, MissingCostError, DeadlockError.
    """
    step = lower_step(prepared, strategy, follow_one_another(strategy, steps))
    return simulate_lowered(step, strategy, engine, steps), step


def simulate_lowered(
    step: LoweredStep, strategy: Strategy, engine: str = "auto", steps: str = STEPS[0]
) -> Trace:
    """The trace of a step as a strategy lowers to it.

    Where steps follow one another, as many are simulated as it takes until they repeat, or as there
    may be (COUNTS). Raises InputError, DeadlockError.
    """
    if not follow_one_another(strategy, steps):
        return simulate(iterated(step, 1), engine)
    sync = strategy.sync if isinstance(strategy.sync, Sync) else None
    # Doubling: what repeats early costs little, and of the rest at most half was in vain.
    for count in _counts(step):
        graph = iterated(step, count)
        if step.pushes and sync:
            trace = _under_credit(step, graph, sync, engine)
        else:
            trace = simulate(graph, engine)
        steady = steady_state(trace)
        if steady is not None and steady.repeats:
            break
    return trace


def _counts(step: LoweredStep) -> Iterator[int]:
    """How many steps to simulate, one number after the other, until they repeat."""
    yield from [count for count in COUNTS if count <= most_steps(step)] or COUNTS[:1]
    if step.dispatches is None:
        return
    # A host that is faster than its device is further ahead with every step, until it may not be.
    each, count = len(step.task_graph.tasks) + len(step.dispatches.task), 2 * COUNTS[-1]
    while count <= MOST_AHEAD and count * each <= WORTH_FOLLOWING:
        yield count
        count *= 2


def _under_credit(step: LoweredStep, graph: TaskGraph, sync: Sync, engine: str) -> Trace:
    """The trace of several steps whose workers have a credit."""
    # Loaded where there is a credit: an oracle of placements starts sooner without.
    from .engine.credit import Sent, decisions

    limit, skip = int(sync.credit or 0), sync.credit_rule == "skip"
    return credited(
        step,
        graph,
        sync,
        lambda changed: simulate(changed, engine),
        lambda free, sent: decisions(free, (Sent(*message) for message in sent), limit, skip),
    )


@dataclass(frozen=True, slots=True)
class Steady:
    """How ``steps`` that were simulated follow one another; times in ps.

    ``first_ps`` is the time of the first step, ``periods_ps`` are from the end of each to the end
    of the next (fewer than ``steps`` - 1: only of steps that none which was not simulated could
    disturb), ``trace_ps`` is the end of all. The state repeats every ``cycle`` steps, which was
    proved by comparing it; then the period is exact, a mean over the cycle. With a ``cycle`` of 0
    no repetition was seen; the period is the mean over the later half of ``periods_ps``.
    """

    first_ps: int
    periods_ps: tuple[int, ...]
    steps: int
    cycle: int
    trace_ps: int

    @property
    def repeats(self) -> bool:
        """Whether the state was seen to repeat."""
        return self.cycle > 0

    @property
    def later_ps(self) -> tuple[int, ...]:
        """The periods that count: those of the last cycle, else the later half."""
        return self.periods_ps[-self.cycle if self.repeats else len(self.periods_ps) // 2 :]

    @property
    def period_ps(self) -> Fraction:
        """The period in ps; exact where the state repeats."""
        return Fraction(sum(self.later_ps), len(self.later_ps))

    @property
    def step_ps(self) -> int:
        """The step time: the period, rounded up to a picosecond."""
        return ceil(self.period_ps)

    def to_json(self) -> dict[str, Any]:
        """What ``simdev simulate --json`` adds where steps repeat."""
        return {
            "first_step_s": self.first_ps / PS_PER_SECOND,
            "trace_s": self.trace_ps / PS_PER_SECOND,
            "cycle": self.cycle,
            "steps": self.steps,
            "periods_s": [period / PS_PER_SECOND for period in self.periods_ps],
            "period_min_s": min(self.later_ps) / PS_PER_SECOND,
            "period_max_s": max(self.later_ps) / PS_PER_SECOND,
        }

    def lines(self) -> Iterator[str]:
        """What a person should know of the step time."""
        times = self.first_ps, self.trace_ps, min(self.later_ps), max(self.later_ps)
        first, whole, least, most = map(_time, times)
        yield (
            "Steps follow one another: this is their period. "
            f"First step {first}, all {self.steps} steps {whole}."
        )
        if self.cycle == 1:
            yield "The last steps repeat each other in every task."
        elif self.repeats:
            yield (
                f"Every {self.cycle} steps the same comes again in every task: "
                f"periods from {least} to {most}."
            )
        else:
            yield (
                f"NOT STEADY after {self.steps} steps: "
                f"periods from {least} to {most}, the mean is given."
            )
        more = ", .." if len(self.periods_ps) > PERIODS_SHOWN else ""
        yield f"From end to end: {', '.join(map(_time, self.periods_ps[:PERIODS_SHOWN]))}{more}."


def _time(ps: int) -> str:
    return format_seconds(ps / PS_PER_SECOND)


def steady_state(trace: Trace) -> Steady | None:
    """How the steps of a trace repeat; None for fewer than three, which have no period."""
    steps = trace.task_graph.steps
    if steps < 3:
        return None
    times = _StepTimes.of(trace)
    cycle = next((q for q in range(1, (steps - 2) // 2 + 1) if times.repeat(q)), 0)
    counted = times.ends[: (times.last_undisturbed(cycle) if cycle else steps - 2) + 1]
    return Steady(int(counted[0]), tuple(np.diff(counted).tolist()), steps, cycle, trace.end_ps)


def step_time_ps(trace: Trace) -> int:
    """The step time in ps: of steps that follow one another their period, rounded up (rule 10).

    Fewer than three steps have no period: the end of the trace over their number.
    """
    steady = steady_state(trace)
    return -(-trace.end_ps // trace.task_graph.steps) if steady is None else steady.step_ps


def ready_ps(task_graph: TaskGraph, release: Ints) -> Ints:
    """When each task became ready: the last release (finish + lag) of its predecessors, else 0."""
    successors = task_graph.tasks.successors
    ready = np.zeros(len(task_graph.tasks), np.int64)
    np.maximum.at(ready, successors.ids, release[successors.owners()])
    return ready


@dataclass(frozen=True, slots=True, eq=False)
class _StepTimes:
    """A trace with a row a step: of each task when it was ready, started and finished, in ps.

    ``begins``, ``ends`` and ``frees`` are by step the first start, the last release, and when the
    last task has left its queues too; ``works`` is the first start of what is no dispatch.
    ``launched`` is when replayed graphs are dispatched, ``slack`` the part of a shift that may be
    rounding.
    """

    ready: Ints
    start: Ints
    finish: Ints
    begins: Ints
    ends: Ints
    frees: Ints
    works: Ints
    launched: Ints
    slack: float

    @classmethod
    def of(cls, trace: Trace) -> _StepTimes:
        """The times of a trace of several steps."""
        graph, tasks = trace.task_graph, trace.task_graph.tasks
        release = trace.finish + tasks.lag
        free = np.maximum(release, trace.finish + tasks.gap)
        ready = ready_ps(graph, release)
        # A dispatch is in its turn, however early it is ready: early ones have nothing to wait for
        # that later ones do. (No trace lets a host be further ahead than it may, and what repeats
        # is as far ahead as it was.)
        ready[graph.first_dispatch :] = trace.start[graph.first_dispatch :]
        replays, start, finish = _replays(graph), trace.start, trace.finish
        if len(replays):
            ready, start, finish, free = _without(trace, replays, ready, free)
        times = ready, start, finish, release, free
        ready, start, finish, release, free = map(graph.by_step, times)
        begins = start.min(axis=1, initial=trace.end_ps)
        ends, frees = (column.max(axis=1, initial=0) for column in (release, free))
        works = start[:, : graph.first_dispatch // graph.steps].min(axis=1, initial=trace.end_ps)
        slack = SLACK if tasks.flow.any() else 0.0
        launched = trace.finish[replays].reshape(graph.steps, -1)
        return cls(ready, start, finish, begins, ends, frees, works, launched, slack)

    def repeat(self, cycle: int) -> bool:
        """Whether the state in which the last step begins is that of ``cycle`` steps before.

        Compared are the steps that have not ended then, and at least ``cycle`` + 1 of those before.
        """
        last = len(self.ends) - 2
        now, shift = int(self.begins[last + 1]), int(self.ends[last] - self.ends[last - cycle])
        # A graph dispatched ever longer before its step holds nothing up, ever later it will.
        if (self.launched[last] - self.launched[last - cycle] > shift).any():
            return False
        under_way = np.flatnonzero(self.frees[: last + 1] > now)
        # What was under way then has a like that must have ended, or not, as much later.
        before = np.flatnonzero(self.frees[: last + 1 - cycle] > now - shift) + cycle
        first = min(last - cycle, *under_way[:1].tolist(), *before[:1].tolist(), last)
        if first < cycle:
            return False
        # Of the step that begins, only what waits for its queue by now is part of the state.
        waiting = np.minimum(self.ready[[last + 1 - cycle, last + 1]] + [[shift], [0]], now)
        columns = self.ends, self.begins, self.start, self.finish, self.ready
        return all(
            self._later(times[first - cycle : last + 1 - cycle], times[first : last + 1], shift)
            for times in columns
        ) and self._later(waiting[0] - shift, waiting[1], shift)

    def _later(self, before: Ints, after: Ints, shift: int) -> bool:
        """Whether all of these times are those ``shift`` ps later."""
        return bool((np.abs(after - before - shift) <= self.slack * shift).all())

    def last_undisturbed(self, cycle: int) -> int:
        """The last step that ends before one begins that was not simulated, in the steady state."""
        last = len(self.ends) - 2
        shift = self.ends[last] - self.ends[last - cycle]
        # A host that is far ahead disturbs nothing: its dispatches hold no queue but its thread.
        whole = self.ends[: last + 1] <= self.works[last + 2 - cycle] + shift
        # A step counts only where it is one shift later than its like: not in the first steps.
        whole[cycle:] &= self.ends[cycle : last + 1] - self.ends[: last + 1 - cycle] == shift
        whole[:cycle] = False
        return int(np.flatnonzero(whole)[-1]) if whole.any() else last


def steady_rounds(trace: Trace, rows: Ints) -> Steady | None:
    """How rounds of a trace repeat whose tasks are ``rows``, in one order; None for fewer than
    three. Periods are from begin to begin.

    For graphs of fixed queues in which nothing of a round begins before the round before it does.
    Then all that is to come follows from what runs and waits just before a round begins; of what is
    over by then no time counts, so rounds may repeat while the first are still under way.
    """
    if len(rows) < 3:
        return None
    times = _RoundTimes.of(trace, rows)
    last, begins = len(rows) - 1, times.begins
    here = times.state(last)
    cycle = int(not trace.end_ps)  # what takes no time repeats at once
    for before in range(last - 1, -1, -1):
        slack = times.slack * int(begins[last] - begins[before])
        pairs = zip(here, times.state(before), strict=True)
        if all(a.shape == b.shape and (np.abs(a - b) <= slack).all() for a, b in pairs):
            cycle = last - before
            break
    periods, first = tuple(np.diff(begins).tolist()), int(times.release[0].max())
    return Steady(first, periods, len(rows), cycle, trace.end_ps)


@dataclass(frozen=True, slots=True, eq=False)
class _RoundTimes:
    """A trace with a row a round, in ps: of each task when it was ready, started, finished,
    released others and left its queues; and when each round began.
    """

    ready: Ints
    start: Ints
    finish: Ints
    release: Ints
    free: Ints
    begins: Ints
    slack: float

    @classmethod
    def of(cls, trace: Trace, rows: Ints) -> _RoundTimes:
        graph, tasks = trace.task_graph, trace.task_graph.tasks
        release = trace.finish + tasks.lag
        ready = ready_ps(graph, release)
        # In a fixed queue it is the turn that counts, however early the first in it are ready.
        fixed = np.array([queue.policy == "fixed" for queue in graph.resources])
        turned = tasks.resources.owners()[fixed[tasks.resources.ids]]
        ready[turned] = trace.start[turned]
        free = np.maximum(release, trace.finish + tasks.gap)
        ready, start, finish, release, free = (
            column[rows] for column in (ready, trace.start, trace.finish, release, free)
        )
        slack = SLACK if tasks.flow.any() else 0.0
        return cls(ready, start, finish, release, free, start.min(axis=1), slack)

    def state(self, number: int) -> tuple[Ints, Ints, Ints]:
        """Just before a round begins, of what is not over then, by round: since when it is ready,
        since when it runs, and until when.
        """
        now = self.begins[number]
        alive = self.free[:number] >= now
        alive = alive[int(alive.any(axis=1).argmax()) if alive.any() else number :]
        there = slice(number - len(alive), number)
        ready, start, until = (
            column[there] - now for column in (self.ready, self.start, self.finish)
        )
        until = np.where(start < 0, until, 0)
        # Over is what no other time can be: 1 ps later than now.
        ready, start = (np.where(alive, np.minimum(times, 0), 1) for times in (ready, start))
        return ready, start, np.where(alive, until, 0)


def _replays(graph: TaskGraph) -> Ints:
    """The rows of dispatches of whole steps, which wait for nothing but their thread, however far
    they are ahead.
    """
    tasks, first = graph.tasks, graph.first_dispatch
    rows = range(first, first + (len(tasks) - first) // graph.steps)
    names = (f"dispatch graph@{graph.devices[int(tasks.source[row])]}" for row in rows)
    replays = [row for row, name in zip(rows, names, strict=True) if tasks.name[row] == name]
    steps = np.arange(graph.steps)[:, None] * len(rows)
    return (np.array(replays, np.int64) + steps).ravel()


def _without(trace: Trace, replays: Ints, ready: Ints, free: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Ready, start, finish and end of gaps (ps), replays at the first start of what they dispatch,
    as if it had not waited for them.
    """
    graph, (start, finish) = trace.task_graph, (trace.start.copy(), trace.finish.copy())
    ready, free, successors = ready.copy(), free.copy(), graph.tasks.successors
    for row in replays.tolist():
        ops = successors[row]
        # In a fixed queue: what counts is its turn, and when its inputs end.
        ready[ops] = start[ops]
        for column in (ready, start, finish, free):
            column[row] = trace.start[ops].min()
    return ready, start, finish, free
