"""``plan``: the best ways to spread the step of a large model, at a fixed global batch.

A best-first search: plans are simulated in the order of their bounds until no bound is below the
best. A heap holds groups of setups, setups and plans by their bounds. A popped group (setups that
exchange the same for a microbatch) is replaced by its setups that fit, a setup by its plans, and a
plan by itself with the closer bound of its actions. The first entry of the heap has the least bound
of all plans that are left; once it is above the last of the best plans, the search ends. The best
plans have different degrees, unless ``alike`` allows equal ones.

``simdev/commands/plan.py`` calls ``plans_of``, Python calls ``plan``. ``score`` makes the figures
of a plan, which become columns by FIGURES of outcome.py.
"""

from __future__ import annotations

import heapq
import os
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ...execution.engine import choose, simulate
from ...execution.scenario import fingerprint, load_scenario, lowered
from ...ground.errors import InputError, SimdevError, refuse
from ...ground.units import PS_PER_SECOND, Number
from ...lowering.hybrid import lower_hybrid
from ...nouns.draws import draws_problems
from ...nouns.models.large.roles import ROLES, LargeStep
from ...nouns.trace import Trace
from ...oracle.draws import draws_of
from ...report.measures.costs import shares
from ...report.measures.training import BUBBLE, EXPOSED, Training, critical_rank
from ...report.report import Watch
from ..run import require_whole
from ..sweep.journal import (
    READERS,
    Answer,
    Loop,
    Row,
    Shared,
    failed,
    journaled,
    sources_version,
)
from .bounds import Bounds
from .outcome import ORDER, TIE_PERCENT, Counts, Folded, Plans, Scored, answers_of
from .space import (
    Choices,
    Layout,
    Plan,
    Question,
    Setup,
    Space,
    Way,
    choices_of,
    question_of,
)

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

# Modules that have no influence on the figures and bounds of a plan.
APART = rf"({READERS}|search(?!/(plan|sweep|kernels)/))/"

# The figures of a plan, from a simulated step with one device for each rank of the pipeline.

ENGINE = "compiled"  # SimPy gives the same answer, a hundred times slower
SIMPY_TASKS = 1_000_000  # up to this number of tasks SimPy confirms the best plan


def _simulated(
    question: Question, plan: Plan, engine: str, by_rank: bool = True
) -> tuple[Trace, LargeStep, str]:
    """The trace of a plan's step, its lowered step, and the name of the engine. ``by_rank``
    simulates one device in place of all devices that behave equally. An empty name of the engine
    means the reference engine, up to SIMPY_TASKS. Raises InputError.
    """
    timings = question.timings(plan.setup.layout.cluster)
    options = plan.parallelism, timings.model, timings.costs, by_rank, timings
    task_graph, large = lower_hybrid(question.model, *options)
    engine = engine or ("simpy" if len(task_graph.tasks) < SIMPY_TASKS else ENGINE)
    return simulate(task_graph, engine), large, engine


def score(question: Question, plan: Plan) -> Row:
    """The figures of a plan, ready for JSON: step (ps), whether it fits, peak (bytes), the terms of
    its critical rank (ps); or the reason why it cannot be simulated.
    """
    try:
        trace, large, _ = _simulated(question, plan, ENGINE)
    except InputError as error:
        return failed("; ".join(error.problems))
    # Where groups differ all devices are simulated, and devices of one rank may hold different
    # amounts.
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


def _answer(question: Shared[Question], plan: Plan) -> Answer:
    row = score(question.value, plan)
    return Answer(row, "reason" not in row)  # a plan that was refused is tried again


def confirm(question: Question, plan: Plan, row: Row) -> str:
    """Simulates a plan on all devices, by the reference engine up to SIMPY_TASKS, and returns a
    sentence about it.

    Raises SimdevError where the result differs from the plan's figures, which is a bug, and
    InputError where all devices have too many tasks.
    """
    trace, _, engine = _simulated(question, plan, "", by_rank=False)
    here = trace.end_ps, max(memory.peak for memory in trace.memory)
    if here != (row["step_ps"], row["peak_bytes"]):
        raise SimdevError(f"all devices give {here}, not {row['step_ps'], row['peak_bytes']}")
    devices = question.devices[plan.setup.layout.cluster]
    return (
        f"Confirmed by {len(trace.task_graph.tasks):,} tasks on all {devices:,} devices "
        f"({engine}): {trace.end_ps:,} ps."
    )


# The search.

GROUP, SETUP, WAITED, PATH = range(4)  # the levels of entries of the heap, by kind of bound
ROUND = 8  # plans simulated before the best is updated, whatever the number of processes


def degrees(setup: Setup) -> Layout:
    """The layout without ``context``, the way attention gets the keys of other ranks."""
    return setup.layout._replace(context="")


@dataclass
class Search:
    """A search under way. The ``loop`` simulates plans; its journal keeps figures and bounds under
    the question's ``digest``. ``counts`` has the number of plans by what became of them.
    """

    space: Space
    bounds: Bounds
    counts: Counts
    loop: Loop[Plan]
    digest: str
    top: int
    front: bool
    alike: bool
    folds: bool
    fitting: list[Scored] = field(default_factory=list)
    _least: dict[Layout, int] = field(default_factory=dict)
    _heap: list[tuple[int, int, int, Any, int]] = field(default_factory=list)
    _too_large: list[tuple[int, int, Setup]] = field(default_factory=list)
    _has_bounds: bool = False
    _last: float = inf  # the step of the last of the best

    def run(self, setups: Iterable[Setup]) -> None:
        """The whole search. Raises InputError where no plan can be simulated."""
        groups: dict[Hashable, list[tuple[int, Setup]]] = {}
        place, counts = 0, self.counts
        for setup in setups:
            groups.setdefault(self.bounds.alike(setup), []).append((place, setup))
            place += self.space.count(setup)
        for group in groups.values():
            bound = 0
            with suppress(InputError):  # its setups will be refused one by one
                bound = self._bound(self.bounds.exchanged_ps, group[0][1])
            self._push(bound, group[0][0], GROUP, group)
        while batch := self._next():
            jobs = {
                fingerprint((self.digest, plan.fields, plan.setup.layout.cluster)): plan
                for _, plan in batch
            }
            rows = dict(self.loop.rows(jobs))
            for key, (place, plan) in zip(jobs, batch, strict=True):
                self._take(Scored(place, plan, rows[key]))
            self.loop.done(counts.decided)
        if not self._has_bounds and counts.refused:
            raise InputError(counts.refused)
        counts.slower += counts.legal - counts.decided
        if not self.fitting:
            self._tell_least()

    def _bound(self, bound: Callable[..., T], *about: Any) -> T:
        """A bound of setups or plans, from the journal where it is kept. Raises InputError."""
        journal = self.loop.journal
        if journal is None:
            return bound(*about)
        key = fingerprint((self.digest, bound.__name__, self.bounds.overlaps, *about))
        if key not in journal.rows:
            journal.add(key, self.loop.version, {"bound": bound(*about)})
        return cast("T", journal.rows[key]["bound"])

    def _push(self, bound: int, place: int, level: int, node: Any, peak: int = 0) -> None:
        """Adds an entry to the heap; ``node`` is a plan, or setups with the places of their first
        plans.
        """
        heapq.heappush(self._heap, (bound, place, level, node, peak))

    def _next(self) -> list[tuple[int, Plan]]:
        """The plans of the next round, at most one for each choice of degrees: where its bound is
        close, its step already shows that the others are slower.
        """
        batch: dict[Layout | int, tuple[int, Plan]] = {}
        aside: list[tuple[int, int, int, Any, int]] = []
        # Where the Pareto front is wanted too, no bound of time ends the search.
        limit = inf if self.front else self._last
        while self._heap and self._heap[0][0] <= limit and len(batch) + len(aside) < ROUND:
            entry = bound, place, level, node, peak = heapq.heappop(self._heap)
            if level in (GROUP, SETUP):
                for place, setup in node:
                    if not (self.front or self._may_be_best(bound, setup)):
                        self.counts.slower += self.space.count(setup)
                    else:
                        (self._open if level == GROUP else self._expand)(place, setup)
            elif not self._is_needed(bound, peak, node):
                self.counts.slower += 1
            elif level == WAITED:
                self._follow(place, node)
            elif (key := place if self.front else self._key(place, node)) in batch:
                aside.append(entry)
            else:
                batch[key] = place, node
        for entry in aside:
            self._push(*entry)
        return list(batch.values())

    def _key(self, place: int, plan: Plan) -> Layout | int:
        """A key that is equal for plans of which at most one may be among the best."""
        return place if self.alike else degrees(plan.setup)

    @property
    def answers(self) -> list[Folded]:
        """The best ``top`` answers so far, with only the fastest plan of each layout unless
        ``alike``.
        """
        first: dict[Layout | int, Scored] = {}
        for scored in self.fitting:
            first.setdefault(self._key(scored.place, scored.plan), scored)
        ranked = list(first.values())
        return answers_of(ranked, self.space.devices, folds=self.folds)[: self.top]

    def _may_be_best(self, step: int, setup: Setup) -> bool:
        """Whether a step of a setup would be among the best."""
        least = inf if self.alike else self._least.get(degrees(setup), inf)
        return step <= min(least, self._last)

    @contextmanager
    def _refusing(self, count: int) -> Iterator[None]:
        """Counts ``count`` plans as refused where the block cannot compute their bound."""
        try:
            yield
        except InputError as error:
            self.counts.refused["; ".join(error.problems)] += count

    def _open(self, place: int, setup: Setup) -> None:
        """Puts a setup on the heap with its own bound, in place of its group's."""
        count = self.space.count(setup)
        with self._refusing(count):
            held, fits = self._bound(self.bounds.held, setup, self.space.zeros(setup.layout))
            if fits:
                bound = self._bound(self.bounds.setup_ps, setup)
                self._push(bound, place, SETUP, [(place, setup)])
                self._has_bounds = True
            else:
                self.counts.unfit += count
                self._too_large.append((held, place, setup))

    def _tell_least(self) -> None:
        """Completes ``counts.least_bytes`` where no plan fits, with the plans of setups that were
        excluded as a whole.
        """
        for held, _, setup in sorted(self._too_large):
            if held >= (self.counts.least_bytes or inf):
                return
            for plan in self.space.plans(setup):
                with suppress(InputError):
                    self.counts.hold(self.bounds.plan(plan).peak_bytes)

    def _expand(self, place: int, setup: Setup) -> None:
        plans = self.space.plans(setup)
        waits = self._bound(self._waited, setup, [plan[1:] for plan in plans])
        for number, (plan, waited) in enumerate(zip(plans, waits, strict=True), place):
            self._push(waited, number, WAITED, plan)

    def _waited(self, setup: Setup, ways: Sequence[Way]) -> list[int]:
        return [self.bounds.waited_ps(Plan(setup, *way)) for way in ways]

    def _follow(self, place: int, plan: Plan) -> None:
        """Puts a plan on the heap with the bound of its actions, if its memory fits."""
        with self._refusing(1):
            step, peak, fits = self._bound(self.bounds.plan, plan)
            self.counts.hold(peak)
            if fits:
                self._push(step, place, PATH, plan, peak)
            else:
                self.counts.unfit += 1

    def _is_needed(self, step: int, peak: int, plan: Plan) -> bool:
        """Whether a plan may be among the best, or on the front where that is wanted."""
        may_be = self._may_be_best(step, plan.setup)
        return may_be or (self.front and not self._is_beaten(step, peak, plan, self.fitting))

    def _is_beaten(self, step: int, peak: int, plan: Plan, among: Sequence[Scored]) -> bool:
        """Whether a plan of ``among`` is at least as good in step, memory and devices."""
        devices = self.space.devices
        most = devices[plan.setup.layout.cluster]
        return any(
            other.row["peak_bytes"] <= peak
            and other.row["step_ps"] <= step
            and devices[other.plan.setup.layout.cluster] <= most
            for other in among
        )

    def pareto(self) -> list[Scored]:
        """The plans that fit and that no other beats in step, memory and devices at once."""
        front: list[Scored] = []
        for scored in self.fitting:
            if not self._is_beaten(*scored.order[:2], scored.plan, front):
                front.append(scored)
        return front

    def _take(self, scored: Scored) -> None:
        counts, row = self.counts, scored.row
        if "reason" in row:
            counts.refused[row["reason"]] += 1
            return
        counts.simulated += 1
        counts.overflowing += not row["fits"]
        if row["fits"]:
            insort(self.fitting, scored, key=ORDER)
            layout, step = degrees(scored.plan.setup), row["step_ps"]
            self._least[layout] = min(step, self._least.get(layout, step))
            if len(answers := self.answers) == self.top:
                # Plans up to 1 % slower than the fastest of the last answer still belong to it.
                percent = 100 + TIE_PERCENT * self.folds
                self._last = answers[-1].members[0].row["step_ps"] * percent // 100


TOP = 10
REASONS_SHOWN = 5


def plan(
    model: str | Mapping[str, Any],
    cluster: str | Mapping[str, Any],
    global_batch: int,
    nodes: int | Sequence[int] | None = None,
    length: int | None = None,
    options: Mapping[str, Any] | None = None,
    top: int = TOP,
    price: Number | None = None,
    front: bool = False,
    alike: bool = False,
    n_jobs: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    draws: int = 0,
    seed: int = 0,
    **parts: Any,
) -> pd.DataFrame:
    """The best plans of a large model that fit, a row each, the fastest first, each with other
    degrees. Plans within 1 % of one another share a row, which shows the simplest of them
    (``search/plan/outcome.py``).

    Parameters
    ----------
    model, cluster
        As a scenario has them: a name, a file (``config.json``), or an object.
    global_batch
        Samples of a step: dp x microbatches x microbatch.
    nodes
        Machines of a preset, or several counts, each of which is tried.
    length
        Tokens of a sample (None: the model's).
    options
        Fields of ``strategy.pipeline``: a value for all plans, or a list of values to try. These
        fields are tried in every legal way where they are not given: degrees, microbatch, chunks,
        schedule (``space.SCHEDULES``), zero, recompute, context. All others have the defaults of a
        scenario.
    top
        The number of answers.
    price
        Dollars for an hour of a device, for the column ``cost_per_million_tokens``; the scenarios
        get it, too.
    front
        Whether to add the Pareto front of step time, memory and devices: all plans that no other
        plan beats in all three. It takes longer.
    alike
        Whether every plan is a row of its own, even with equal degrees or within 1 % of another.
        (Where all plans have equal degrees, they are rows of their own anyhow.)
    n_jobs
        The number of plans simulated at once (``simdev.ground.jobs``), which changes no answer.
    journal
        A file to which the figures of every simulated plan and all bounds are appended at once.
        Figures and bounds that it already holds are not computed again.
    progress
        Whether to show a bar on stderr, from two seconds on; None: where stderr is a terminal.
    draws, seed
        The number of draws of the errors of costs for each row, by common random numbers, and their
        seed (``simdev/oracle/draws.py``).
    parts
        Further parts of a scenario: ``profile``, ``devices``.

    Notes
    -----
    The first row is within 1 % of the best of all legal plans, under this model of the machine:
    only plans that are proved slower or too large are left out (``search/plan/bounds.py``).
    Raises InputError where no combination is legal, with the reasons.
    """
    question = question_of(model, cluster, global_batch, nodes, length, parts, price)
    choices = choices_of(options)
    limits = top, front, alike, n_jobs, journal, progress
    return plans_of(question, choices, *limits, draws, seed).frame


def plans_of(
    question: Question,
    choices: Choices,
    top: int = TOP,
    front: bool = False,
    alike: bool = False,
    n_jobs: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    draws: int = 0,
    seed: int = 0,
    watch: Watch = lambda parts: parts,
) -> Plans:
    """The best plans of a question, with counts of all others. Raises InputError.

    ``watch`` may show the progress of draws.
    """
    require_whole("top", top)
    refuse(draws_problems(draws or 1, seed))
    choose(ENGINE, 0)  # refuses where it is missing
    begun = time.perf_counter()
    space = Space(question.model, question.devices, question.global_batch, choices)
    counts = Counts()
    setups = list(space.setups(counts.illegal))
    counts.legal = sum(map(space.count, setups))
    if not counts.legal:
        raise InputError(_nothing(counts.illegal) or space.nothing())
    version = sources_version(APART) if journal else ""
    digest = fingerprint((version, question.content)) if journal else ""
    scorer = partial(_answer, Shared(question))
    with journaled(
        "plan", scorer, n_jobs, version, journal, progress, few=1, total=counts.legal, unit="plan",
        leave=False,
    ) as loop:  # fmt: skip
        every = alike or len({degrees(setup) for setup in setups}) == 1
        bounds = Bounds(question, space.choices.listed["schedule"])
        search = Search(space, bounds, counts, loop, digest, top, front, every, not alike)
        search.run(setups)
    best = sorted((scored for each in search.answers for scored in each.members), key=ORDER)
    points = tuple(search.pareto()) if front else ()
    seconds = time.perf_counter() - begun
    plans = Plans(question, tuple(best), points, counts, seconds, not alike)
    return _with_draws(plans, draws, seed, watch) if draws else plans


def _with_draws(plans: Plans, draws: int, seed: int, watch: Watch) -> Plans:
    """The plans with draws of each answer. They are drawn from its scenario, so that answers share
    the errors of the costs that they share.
    """
    scenarios = (plans.question.scenario(shown.plan) for shown, _ in plans.answers)
    each = (lowered(load_scenario(scenario)) for scenario in scenarios)
    return replace(
        plans, draws=tuple(draws_of(question, draws, seed, watch=watch) for question in each)
    )


def _nothing(illegal: Counter[str]) -> list[str]:
    """The most frequent reasons why there is no plan at all."""
    most = [f"{reason}: {count:,} combinations" for reason, count in illegal.most_common()]
    return most[:REASONS_SHOWN]
