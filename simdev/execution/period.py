"""Steps that follow one another: simulate them until they repeat, and compute their period.

Execution contract, rule 10: E(k) is the last finish or release of step k. Where every start repeats
q steps later, up to one shift, the period is (E(k + q) - E(k)) / q.

Two equal periods prove nothing. The proof: if the last q steps are repeated for ever, each time by
the same shift later, every rule of the contract is kept. The rules leave no choice, so an engine
would do the same. Three conditions are checked for it:

- Each task has a pace: how much later it starts than q steps before. Tasks that meet in a queue or
  on a link have equal paces.
- When the first task arrives that was not simulated, the same tasks run or wait in its queues and
  links as q steps before.
- A predecessor of a task has the pace of the task, or a smaller one; a smaller one is allowed where
  the predecessor's release no longer delays the task.

So a device that waits for no other may run ever further ahead, as loaders and hosts of endless
steps do. The step time is the largest pace. Steps that differ come in rounds (local SGD: only the
last step of a round reduces). All rounds have the same tasks, so rounds are compared instead of
steps, and q is a multiple of a round's length.

``execution.scenario`` simulates through this module, reports and what-ifs take the step time from
it (``report/measures/section.py``), and the oracle calls it where its kernels cannot answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import chain
from math import ceil
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..ground.units import PS_PER_SECOND, format_seconds
from ..lowering import LoweredStep, Prepared, credited, iterated, lower_step, most_rounds
from ..nouns.strategy import Strategy, Sync
from ..nouns.taskgraph import Ints, TaskGraph
from ..nouns.trace import Trace
from .engine import simulate

STEPS = ("once", "repeated")
"""Values of a scenario's ``steps``: one step, or steps that follow one another."""

COUNTS = (4, 8, 16, 32, 52)
"""Numbers of steps (or rounds) to try until the steps repeat; the last leaves 50 periods."""

# Steps whose hosts get further ahead are followed up to this many steps and tasks: some seconds.
MOST_AHEAD, WORTH_FOLLOWING = 32 * COUNTS[-1], 200_000

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
    step: LoweredStep, strategy: Strategy, engine: str = "auto", steps: str = STEPS[0],
    graph_of: Callable[[int], TaskGraph] | None = None,
) -> Trace:  # fmt: skip
    """The trace of a lowered step, or of several where steps follow one another: as many as it
    takes until they repeat, at most COUNTS[-1] rounds (more where hosts run ahead).

    ``graph_of`` makes the task graph of a number of rounds; a caller gives it to change durations
    (``factors.py``). Raises InputError, DeadlockError.
    """
    graph_of = graph_of or partial(iterated, step)
    if not follow_one_another(strategy, steps):
        return simulate(graph_of(1), engine)
    sync = strategy.sync if isinstance(strategy.sync, Sync) else None
    # Counts double: steps that repeat early cost little, and at most half of the work is wasted.
    for rounds in _counts(step):
        graph = graph_of(rounds)
        if step.pushes and sync:
            trace = _under_credit(step, graph, sync, engine)
        else:
            trace = simulate(graph, engine)
        steady = steady_state(trace)
        if steady is not None and steady.repeats:
            break
    return trace


def _counts(step: LoweredStep) -> Iterator[int]:
    """Numbers of rounds to simulate, one after the other, until the rounds repeat."""
    yield from [count for count in COUNTS if count <= most_rounds(step)] or COUNTS[:1]
    if step.dispatches is None:
        return
    # A host faster than its device gets further ahead with every step, until its limit stops it.
    each, count = len(step.task_graph.tasks) + len(step.dispatches.task), 2 * COUNTS[-1]
    while (steps := count * step.round) <= MOST_AHEAD and steps * each <= WORTH_FOLLOWING:
        yield count
        count *= 2


def _under_credit(step: LoweredStep, graph: TaskGraph, sync: Sync, engine: str) -> Trace:
    """The trace of several steps whose workers have a credit."""
    # Imported only where there is a credit: an oracle of placements starts sooner without SimPy.
    from .engine.simpy_engine import decisions

    guess = partial(decisions, limit=int(sync.credit or 0), skip=sync.credit_rule == "skip")
    return credited(step, graph, sync, partial(simulate, engine=engine), guess)


@dataclass(frozen=True, slots=True)
class Steady:
    """How the simulated steps follow one another; times in ps.

    ``steps`` is their number, ``first_ps`` the time of the first, ``trace_ps`` the end of the last.
    ``periods_ps`` are from the end of a step to the end of the next; they are fewer than ``steps``
    - 1, for steps that a further step could have disturbed are left out. The state is proved to
    repeat every ``cycle`` steps; then the period is exact, a mean over the cycle. With a ``cycle``
    of 0 no repetition was seen; the period is the mean over the later half of ``periods_ps``. Steps
    that differ come in rounds of ``round`` steps, and ``cycle`` is a multiple of ``round``.
    """

    first_ps: int
    periods_ps: tuple[int, ...]
    steps: int
    cycle: int
    trace_ps: int
    round: int = 1

    @property
    def repeats(self) -> bool:
        """Whether the steps were proved to repeat."""
        return self.cycle > 0

    @property
    def later_ps(self) -> tuple[int, ...]:
        """The periods in the mean: those of the last cycle, else those of the later half."""
        rounds = len(self.periods_ps) // self.round
        return self.periods_ps[-(self.cycle or (rounds - rounds // 2) * self.round) :]

    @property
    def period_ps(self) -> Fraction:
        """The period in ps; exact where the steps repeat."""
        return Fraction(sum(self.later_ps), len(self.later_ps))

    @property
    def step_ps(self) -> int:
        """The step time: the period, rounded up to a picosecond."""
        return ceil(self.period_ps)

    def to_json(self) -> dict[str, Any]:
        """The keys that ``simdev simulate --json`` adds where steps repeat."""
        return {
            "first_step_s": self.first_ps / PS_PER_SECOND,
            "trace_s": self.trace_ps / PS_PER_SECOND,
            "cycle": self.cycle,
            "steps": self.steps,
            **({"round": self.round} if self.round > 1 else {}),
            "periods_s": [period / PS_PER_SECOND for period in self.periods_ps],
            "period_min_s": min(self.later_ps) / PS_PER_SECOND,
            "period_max_s": max(self.later_ps) / PS_PER_SECOND,
        }

    def lines(self) -> Iterator[str]:
        """Sentences on how steps follow one another."""
        times = self.first_ps, self.trace_ps, min(self.later_ps), max(self.later_ps)
        first, whole, least, most = map(_time, times)
        period, n = ": this is their period", self.round
        if n > 1:
            period = f" in rounds: this is the period of a round of {n} steps, divided by {n}"
        ends = f"First step {first}, all {self.steps} steps {whole}."
        yield f"Steps follow one another{period}. {ends}"
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
    """How the steps of a trace repeat; None for fewer than three steps (or rounds), which have no
    period. The result is cached by trace: the simulation and the reports both need it.
    """
    if trace.task_graph.rounds < 3:
        return None
    if trace not in _STEADY:
        _STEADY[trace] = _steady(trace)
    return _STEADY[trace]


_STEADY: WeakKeyDictionary[Trace, Steady] = WeakKeyDictionary()


def _steady(trace: Trace) -> Steady:
    graph, times = trace.task_graph, _StepTimes.of(trace)
    # A cycle is compared with the one before it.
    cycle = next((q for q in range(1, (graph.rounds - 2) // 2 + 1) if times.repeat(q)), 0)
    last = times.last_undisturbed(cycle) if cycle else times.last
    counted, length = times.ends_of_steps()[: last + 1].ravel(), graph.steps // graph.rounds
    periods = tuple(np.diff(counted).tolist())
    return Steady(int(counted[0]), periods, graph.steps, cycle * length, trace.end_ps, length)


def in_step(trace: Trace, steady: Steady | None) -> Trace:
    """The trace, with tasks that run ahead at a smaller pace moved later, so that they end with
    their steps: any period then shows all the work of one step on a device.
    """
    if steady is None or not steady.repeats:
        return trace
    leads = (times := _StepTimes.of(trace)).leads(steady.cycle // steady.round)
    if not leads.any():
        return trace
    later = np.zeros(len(trace.start), np.int64)
    later[times.number] = leads
    return replace(trace, start=trace.start + later, finish=trace.finish + later)


def step_time_ps(trace: Trace) -> int:
    """The step time in ps, rounded up: the period of steps that follow one another (rule 10), or,
    for fewer than three steps, the end of the trace divided by their number.
    """
    steady = steady_state(trace)
    return -(-trace.end_ps // trace.task_graph.steps) if steady is None else steady.step_ps


def ready_ps(task_graph: TaskGraph, release: Ints) -> Ints:
    """When each task became ready: the last release (finish + lag) of its predecessors, else 0."""
    successors = task_graph.tasks.successors
    ready = np.zeros(len(task_graph.tasks), np.int64)
    np.maximum.at(ready, successors.ids, release[successors.owners()])
    return ready


def _times_of(trace: Trace) -> tuple[tuple[Ints, ...], float]:
    """The times in ps at which each task became ready, started, finished, released its successors
    and freed its queues; and the relative error of a shift by rounding.
    """
    graph, tasks = trace.task_graph, trace.task_graph.tasks
    release = trace.finish + tasks.lag
    ready = _in_turn(graph, ready_ps(graph, release), trace.start)
    free = np.maximum(release, trace.finish + tasks.gap)
    slack = SLACK if tasks.flow.any() else 0.0
    return (ready, trace.start, trace.finish, release, free), slack


@dataclass(frozen=True, eq=False)
class _StepTimes:
    """The times of a trace in ps, as matrices with a row for each step and a column for each task
    of a step: when it became ready, started, finished, released its successors and freed its
    queues. Where steps differ, a row is a round: "step" means a round in this class, and ``cycle``
    counts rounds.

    ``number`` is the task of each row and column. ``ends`` is the last release of each step;
    ``slack`` is the relative error of a shift by rounding.
    """

    graph: TaskGraph
    number: Ints
    ready: Ints
    start: Ints
    finish: Ints
    release: Ints
    free: Ints
    ends: Ints
    slack: float

    @classmethod
    def of(cls, trace: Trace) -> _StepTimes:
        """The times of a trace of several steps."""
        graph, columns, slack = trace.task_graph, *_times_of(trace)
        number = np.arange(len(graph.tasks))
        number, ready, start, finish, release, free = map(graph.by_round, (number, *columns))
        ends = release.max(axis=1, initial=0)
        return cls(graph, number, ready, start, finish, release, free, ends, slack)

    def ends_of_steps(self) -> Ints:
        """The ps at which each step of each round, and all steps before it, have ended."""
        if not self.graph.round:
            return self.ends[:, None]
        begins, count = np.cumsum((0, *self.graph.round[:-1])), sum(self.graph.round)
        ends = np.maximum.reduceat(self.release[:, :count], begins, axis=1)
        # A host's dispatch may end last: it counts for the last step of its round.
        ends[:, -1] = self.ends
        ended: Ints = np.maximum.accumulate(ends, axis=1)
        return ended

    @property
    def last(self) -> int:
        """The last step that counts: the last but one that was simulated."""
        return len(self.ends) - 2

    def shift(self, cycle: int) -> int:
        """The time in ps from the end of the step ``cycle`` steps before the last to its end."""
        return int(self.ends[self.last] - self.ends[self.last - cycle])

    def tolerance(self, cycle: int) -> float:
        """The error of a shift by rounding, in ps."""
        return self.slack * self.shift(cycle)

    def paces(self, cycle: int) -> Ints:
        """The pace of each task of a step: how much later (ps) it starts in the last step than
        ``cycle`` steps before. Paces that differ only by rounding are made equal.
        """
        shifts = self.start[self.last] - self.start[self.last - cycle]
        values, place = np.unique(shifts, return_inverse=True)
        differ = np.diff(values) > self.tolerance(cycle)
        largest = values[np.append(differ, np.ones(len(values[:1]), np.bool_))]
        paces: Ints = largest[np.append(0, np.cumsum(differ))[place]]
        return paces

    def repeat(self, cycle: int) -> bool:
        """Whether all steps after the last one will equal the step ``cycle`` steps before, with
        each task later by its pace (see the top of the module).
        """
        last, paces = self.last, self.paces(cycle)
        # Most candidates for the cycle fail here, cheaply.
        if not (self._later(self.finish, paces, last, cycle) and self._meet_in_step(paces)):
            return False
        first = self._first_under_way(paces, cycle)
        if first < cycle:
            return False
        ready = self.ready[last] - self.ready[last - cycle]
        times = (self.start, paces), (self.finish, paces), (self.ready, ready)
        return (
            all(self._later(column, by, first, cycle) for column, by in times)
            and self._ends_at(paces, cycle)
            and self._queues_keep_order(paces, ready, cycle)
            and self._inputs_keep_away(paces, ready, first, cycle)
            and self.last_undisturbed(cycle) >= 0
        )

    def _later(self, times: Ints, by: Ints | int, first: int, cycle: int) -> bool:
        """Whether from step ``first`` on all times are ``by`` later than ``cycle`` steps before."""
        before, after = times[first - cycle : self.last + 1 - cycle], times[first : self.last + 1]
        return bool((np.abs(after - before - by) <= self.tolerance(cycle)).all())

    def _ends_at(self, paces: Ints, cycle: int) -> bool:
        """Whether the last task of each step in the cycle is one of the largest pace."""
        behind = slice(self.last - cycle, self.last + 1)
        ends = self.release[behind, paces == paces.max(initial=0)].max(axis=1, initial=0)
        return bool((ends == self.ends[behind]).all())

    def _first_under_way(self, paces: Ints, cycle: int) -> int:
        """The first step with a task that is still at some place (a queue or a link) when the first
        task that was not simulated arrives there, or the task q steps before that one; where there
        is no such step, the last.

        -1 where a task simulated after the last step arrives earlier and so may delay others.
        """
        places, last, behind = self._places, self.last, slice(self.last + 1 - cycle, self.last + 1)
        left = places.reduced(np.maximum, self.free[: last + 1])
        comes = places.reduced(np.minimum, self.start[behind] + paces).min(axis=0)
        came = places.reduced(np.minimum, self.start[last + 1 :])[0]
        if (came < np.minimum(comes - self.tolerance(cycle), left.max(axis=0))).any():
            return -1
        pace = places.reduced(np.maximum, paces[None])[0]
        # A place of pace 0 holds only tasks that take no time: none is ever under way there.
        left[:, pace == 0] = -1
        now = np.flatnonzero((left >= comes).any(axis=1))
        then = np.flatnonzero((left[: last + 1 - cycle] >= comes - pace).any(axis=1)) + cycle
        firsts: list[int] = [last, *now[:1].tolist(), *then[:1].tolist()]
        return min(firsts)

    def _meet_in_step(self, paces: Ints) -> bool:
        """Whether all tasks that meet at a place have one pace."""
        slowest, fastest = (self._places.reduced(f, paces[None]) for f in (np.minimum, np.maximum))
        return bool((slowest == fastest).all())

    @cached_property
    def _places(self) -> _Places:
        return _Places.of(self.graph, self.number[0])

    def _queues_keep_order(self, paces: Ints, ready: Ints, cycle: int) -> bool:
        """Whether the tasks of each queue become ready at one pace: the pace of the queue, or, in a
        first-in-first-out queue, a smaller one (ever earlier).
        """
        places, close = self._places, self.tolerance(cycle)

        def ends(of_task: Ints) -> tuple[Ints, Ints]:
            return places.reduced(np.minimum, of_task), places.reduced(np.maximum, of_task)

        (pace, _), (low, high) = ends(paces[None]), ends(ready[None])
        # With priorities a later step's task may overtake, and would do so more with each step.
        ranks = ends(self.graph.by_round(self.graph.tasks.priority)[:2])
        ranked = (ranks[0] < ranks[1]).any(axis=0) & (places.policy == "priority")
        in_step = (low >= pace - close) & (high <= pace + close)
        kept = (high - low <= close) & (in_step | ~ranked) | np.isin(places.policy, ("", "fixed"))
        return bool(kept.all())

    def _inputs_keep_away(self, paces: Ints, ready: Ints, first: int, cycle: int) -> bool:
        """Whether inputs that arrive ever earlier no longer change any start. Three conditions: a
        predecessor whose release is ever earlier is not the last one of its task, a task that
        becomes ready ever earlier waits for its queue, and no input arrives ever later.
        """
        close, steps = self.tolerance(cycle), slice(first, self.last + 1)
        early = ready < paces - close
        if (ready > paces + close).any() or (self.ready >= self.start)[steps, early].any():
            return False
        successors, task = self.graph.tasks.successors, self.number.ravel()
        row, column, release, since = (np.zeros(len(task), np.int64) for _ in range(4))
        row[task], column[task] = np.divmod(np.arange(len(task)), self.number.shape[1])
        release[task], since[task] = self.release.ravel(), self.ready.ravel()
        before, after = successors.owners(), successors.ids
        counted = (row[after] >= first) & (row[after] <= self.last)
        before, after = before[counted], after[counted]
        lead = ready[column[after]] - paces[column[before]]
        comes_later = (lead > close) & (release[before] >= since[after])
        return not bool(((lead < -close) | comes_later).any())

    def leads(self, cycle: int) -> Ints:
        """For each step and task, how much earlier than the step the tasks with this task's pace
        end, in ps; 0 for tasks that keep the pace of the steps.
        """
        leads, paces, last = np.zeros_like(self.start), self.paces(cycle), self.last
        for pace in set(paces.tolist()) - {paces.max(initial=0)}:
            lead = self.ends - self.release[:, paces == pace].max(axis=1)
            # The simulation stops after the row behind the last step, so its end is computed.
            lead[last + 1] = lead[last + 1 - cycle] + self.shift(cycle) - pace
            leads[:, paces == pace] = lead[:, None]
        return leads

    def last_undisturbed(self, cycle: int) -> int:
        """The last step that ends before the first step that was not simulated begins, and one
        shift later than the step ``cycle`` steps before; -1 where there is none.
        """
        last, shift = self.last, self.shift(cycle)
        # Dispatches hold only their thread, so a host far ahead disturbs no op and is left out.
        works = (self.start + self.leads(cycle))[
            last + 2 - cycle, : self.graph.first_dispatch // self.graph.rounds
        ].min(initial=self.ends[-1])
        whole = self.ends[cycle : last + 1] <= works + shift
        later = self.ends[cycle : last + 1] - self.ends[: last + 1 - cycle]
        whole &= np.abs(later - shift) <= self.tolerance(cycle)
        return cycle + int(np.flatnonzero(whole)[-1]) if whole.any() else -1


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """The places where tasks of a step meet: queues, links, places where tasks slow each other, and
    devices with their single dispatches (no edge need show that a host's lead is limited).

    ``task`` lists columns of ``_StepTimes``, place after place; ``begins`` is the start of each
    place in it. ``policy`` is that of a queue, and "" for other places.
    """

    policy: NDArray[np.str_]
    task: Ints
    begins: Ints

    @classmethod
    def of(cls, graph: TaskGraph, rows: Ints) -> _Places:
        """The places of the tasks of the first step (``rows``)."""
        tasks, column = graph.tasks, np.full(len(graph.tasks), -1)
        column[rows] = np.arange(len(rows))
        met = [(rows.owners(), rows.ids) for rows in (tasks.resources, tasks.links)]
        for slowed in graph.sharing:
            sides = slowed.first, slowed.second
            owners = np.concatenate([side.owners() for side in sides])
            met.append((owners, np.concatenate([side.ids for side in sides])))
        places, count = list[Ints](), 0
        for _, ids in (met := [*met, _dispatched(graph)]):
            places.append(ids + count)
            count += max(len(graph.resources), int(ids.max(initial=0)) + 1)
        task = column[np.concatenate([owners for owners, _ in met])]
        place = np.concatenate(places)[task >= 0]
        task = task[task >= 0]
        order = np.argsort(place, kind="stable")
        numbers, begins = np.unique(place[order], return_index=True)
        policies = [queue.policy for queue in graph.resources] + [""] * count
        return cls(np.array(policies)[numbers], task[order], begins)

    def reduced(self, ufunc: np.ufunc, times: Ints) -> Ints:
        """The minimum or maximum (``ufunc``) of the times at each place; a row for each step."""
        reduced: Ints = ufunc.reduceat(times[:, self.task], self.begins, axis=1)
        return reduced


def _dispatched(graph: TaskGraph) -> tuple[Ints, Ints]:
    """Pairs (task, device) of the tasks that dispatch single ops of the first step (or round), and
    of these ops.
    """
    tasks, first = graph.tasks, graph.first_dispatch
    rows = range(first, first + (len(tasks) - first) // graph.rounds)
    devices, steps = tasks.source[first : rows.stop], graph.steps // graph.rounds
    sent = [
        row
        for row, device, count in zip(rows, devices, np.bincount(devices)[devices], strict=True)
        # A whole graph, the only dispatch of its device, waits for its thread alone. Names are
        # made when they are read, so only the few candidates are looked up.
        if count > steps or not _replays(tasks.name[row], graph.devices[device], steps > 1)
    ]
    ops = [tasks.successors[row] for row in sent]
    devices = tasks.source[sent]
    of_ops = np.repeat(devices, [len(row) for row in ops])
    return np.array([*sent, *chain(*ops)], np.int64), np.concatenate((devices, of_ops))


def _replays(name: str, device: str, several: bool) -> bool:
    """Whether a dispatch launches a device's whole graph, in one of ``several`` steps or alone."""
    graph = f"dispatch graph@{device}"
    return name == graph or (several and name.rpartition("~")[0] == graph)


def _in_turn(graph: TaskGraph, ready: Ints, start: Ints) -> Ints:
    """The times at which tasks became ready. For tasks that hold only fixed queues it is their
    start: there the sequence decides, and an early ready time makes no difference.
    """
    held = graph.tasks.resources
    fixed = np.array([queue.policy == "fixed" for queue in graph.resources], np.bool_)
    others = np.bincount(held.owners()[~fixed[held.ids]], minlength=len(ready))
    return np.where((np.diff(held.ptr) > 0) & (others == 0), start, ready)


def steady_rounds(trace: Trace, rows: Ints) -> Steady | None:
    """How the rounds of a trace repeat; None for fewer than three. ``rows`` has the tasks of each
    round, in one order. Periods are from begin to begin.

    The task graph must have fixed queues, and no task of a round may begin before the round before
    it. Then the tasks that run or wait just before a round begins decide everything later, and the
    times of ended tasks do not matter: so a repetition can be seen while earlier rounds still run.
    """
    if len(rows) < 3:
        return None
    times = _RoundTimes.of(trace, rows)
    last, begins = len(rows) - 1, times.begins
    here = times.state(last)
    cycle = int(not trace.end_ps)  # rounds that take no time repeat at once
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
    """The times of a trace in ps, a row for each round: when each task became ready, started,
    finished, released its successors and freed its queues; and when each round began.
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
        columns, slack = _times_of(trace)
        ready, start, finish, release, free = (column[rows] for column in columns)
        return cls(ready, start, finish, release, free, start.min(axis=1), slack)

    def state(self, number: int) -> tuple[Ints, Ints, Ints]:
        """The state just before round ``number`` begins, a row for each round with tasks under way:
        since when each task is ready, since when it runs, and until when, in ps from that moment.
        """
        now = self.begins[number]
        alive = self.free[:number] >= now
        alive = alive[int(alive.any(axis=1).argmax()) if alive.any() else number :]
        there = slice(number - len(alive), number)
        ready, start, until = (
            column[there] - now for column in (self.ready, self.start, self.finish)
        )
        until = np.where(start < 0, until, 0)
        # Tasks that are over are marked by 1, which no other time can be.
        ready, start = (np.where(alive, np.minimum(times, 0), 1) for times in (ready, start))
        return ready, start, np.where(alive, until, 0)
