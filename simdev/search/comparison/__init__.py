"""Comparisons: every method on every question, with several seeds.

    runs (method x seed x question; kept in a journal) -> Comparison -> table, curves, picture

``run_comparison`` runs every method on every question and returns a Comparison; ``compare`` returns
its table. ``simdev/commands/search.py`` and benchmarks call them. run.py checks the limits, as for
one search; runs.py defines what a journal keeps of a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ...execution.scenario import Scenario, fingerprint
from ...ground.errors import InputError
from ...ground.jobs import is_serial
from ...ground.version import __version__
from ...nouns.cluster import Cluster, Device
from ...nouns.graph import Graph, Op, Tensor
from ...oracle import Oracle
from ..learners import LearnerOptions, requested
from ..methods import METHODS
from ..run import check_limits, require_whole, search, search_oracle
from ..sweep.journal import Answer, Row, Shared, bug, failed, journaled, sources_version
from ..trial import REFUSED, Budget
from .comparison import Comparison
from .runs import Entrant, Question, References, Run, question_of, record_of, run_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "compare", "run_comparison"]

Point = tuple[Hashable, Entrant, int]
"""A point of a comparison: the name of the question, the method, the seed."""

# Sources that cannot change the answer of a search (``sources_version``).
APART = (
    r"(commands|formats|measure|report|execution/check|learn/env"
    r"|search/(comparison/(comparison|curves)|sweep))/"
)
REHEARSED = 8  # evaluations of a rehearsal


@dataclass(frozen=True, slots=True)
class Terms:
    """The limits of every method of a comparison, its preparations (None: each method's defaults),
    and the options of learners.
    """

    budget: int | None = None
    seconds: float | None = None
    prepare: tuple[str, ...] | None = None
    settings: object | None = None
    warm: str | None = None

    def options(self, entrant: Entrant) -> LearnerOptions:
        """The options of a method. Only learners take the settings and the start; a start that was
        listed with the method (``post+m-sct``) goes first.
        """
        if METHODS[entrant.method].learner is None:
            return LearnerOptions(warm=entrant.warm)
        # One process per search, so that CPU seconds of methods can be compared.
        return LearnerOptions(self.settings, entrant.warm or self.warm, n_jobs=1)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One method with one seed on a question; ``progress`` is called with the number of
    evaluations, where the task runs in this process.
    """

    question: Shared[Question]
    entrant: Entrant
    seed: int
    terms: Terms
    progress: Callable[[int], object] | None = None

    def key(self, digest: str) -> str:
        """The key of the task's record, for a question of this digest. It changes with everything
        that may change the answer, the sources of simdev among them.
        """
        return fingerprint((sources_version(APART), digest, self.entrant, self.seed, self.terms))


def answer(task: Task) -> Answer:
    """The record of a task's result. A refusal is not kept in the journal: its cause may be a
    missing package, and to refuse again takes no time.
    """
    method, terms, question = task.entrant.method, task.terms, task.question.value
    rehearse(method)
    try:
        request = requested(method, terms.options(task.entrant))
        limits = Budget(terms.budget, terms.seconds, task.seed, task.progress)
        # Methods that split ops take no preparations: they search the graph as it is.
        prepare = None if METHODS[method].splits else terms.prepare
        result = search_oracle(question.oracle, question.given, method, limits, prepare, request)
        ended = result.provenance["ended"]
        return Answer(record_of(question.oracle, result), ended != "interrupted")
    except REFUSED as error:
        return Answer(failed(str(error)), lasting=False)
    except Exception as error:
        return Answer(failed(bug(error)), lasting=False)


@cache
def rehearse(method: str) -> None:
    """Run a method on a toy, once per process, so that no run pays for one-time loads: compiled
    loops, solvers, torch.
    """
    ops = (Op("a", outputs=(Tensor(1),), time=1), Op("b", inputs=("a",), time=1))
    devices = [Device("g0"), Device("g1")]
    toy = Oracle(Graph("toy", ops), Cluster.all_to_all("two", devices, bandwidth=1))
    n_jobs = None if METHODS[method].learner is None else 1
    try:
        ended = search(toy, method, REHEARSED, seconds=1.0, n_jobs=n_jobs).provenance["ended"]
    except Exception:  # the run of the question itself will report it
        return
    if ended == "interrupted":
        raise KeyboardInterrupt


ALL = "all"
ENDLESS = "exhaustive"  # nothing but a limit in time ends it on large graphs
SEEDS = 5
NEVER_BEGAN = "interrupted before it began"


def run_comparison(
    methods: str | Iterable[str],
    questions: Mapping[Any, Scenario | Oracle],
    budget: int | None = None,
    seed: int = 0,
    seconds: float | None = None,
    prepare: Sequence[str] | None = None,
    seeds: int = SEEDS,
    settings: object | None = None,
    warm: str | None = None,
    n_jobs: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Every method on every scenario or oracle, within the same limits.

    Parameters
    ----------
    methods
        Names of methods; "post+m-sct" is the learner "post", which first imitates "m-sct". "all"
        means all methods, with exhaustive search only where ``seconds`` are given.
    questions
        Scenarios or Oracles by name; each is prepared once, for all methods.
    budget, seconds, prepare
        Arguments of ``search``, for every method; methods that split ops take no preparation.
    seed, seeds
        The first seed, and how many: ``seed``, ``seed + 1``, ... A method that draws nothing at
        random runs once.
    settings, warm
        Options of ``search`` for the learners.
    n_jobs
        The number of runs at once (``simdev.ground.jobs``). It changes no answer, except where a
        limit in seconds ends a run.
    journal
        A file to which every finished run is appended at once. A comparison does not repeat the
        runs in it, as long as neither the question nor simdev has changed.
    progress
        Whether to show a bar on stderr, from two seconds on; None: where stderr is a terminal.

    Notes
    -----
    A method that refuses a question has a run with the reason. Ctrl-C ends with the runs so far,
    and the best so far of the run under way. Raises InputError for an unknown method, for wrong
    limits, and for a journal that cannot be written; KeyboardInterrupt where there is no run yet.
    """
    entrants = _entrants(methods, seconds)
    for entrant in entrants:
        check_limits(entrant.method, budget, seed, seconds, prepare)
        is_learner = METHODS[entrant.method].learner is not None
        start = entrant.warm or (warm if is_learner else None)
        requested(entrant.method, LearnerOptions(warm=start))
    require_whole("seeds", seeds)
    if not isinstance(questions, Mapping):
        raise InputError(f"questions: must be Scenarios or Oracles by name, got {questions!r}")
    limit = None if budget is None else int(budget)  # a NumPy number is no JSON
    names = None if prepare is None else tuple(prepare)
    terms = Terms(limit, seconds, names, settings, warm)
    posed = {name: _posed(question) for name, question in questions.items()}
    points = [
        (name, entrant, int(seed) + turn)
        for name in questions
        for entrant in entrants
        for turn in range(int(seeds) if METHODS[entrant.method].draws else 1)
    ]
    tasks = {
        point: Task(question, *point[1:], terms)
        for point in points
        if isinstance(question := posed[point[0]], Shared)
    }
    records, is_interrupted = _records(tasks, n_jobs, journal, progress)
    runs = tuple(_run(point, records.get(point), posed[point[0]]) for point in points)
    beside = {
        name: References() if isinstance(question, str) else question.value.references
        for name, question in posed.items()
    }
    return Comparison(runs, beside, is_interrupted)


def compare(
    methods: str | Iterable[str],
    questions: Mapping[Any, Scenario | Oracle],
    budget: int | None = None,
    seed: int = 0,
    seconds: float | None = None,
    prepare: Sequence[str] | None = None,
    seeds: int = 1,
    **options: Any,
) -> pd.DataFrame:
    """The table that papers print: a row for each question and method, in this order (columns:
    ``Comparison.table``), with the options of ``run_comparison``.
    """
    limits = budget, seed, seconds, prepare
    return run_comparison(methods, questions, *limits, seeds=seeds, **options).table


def _entrants(methods: str | Iterable[str], seconds: float | None) -> list[Entrant]:
    """The listed methods, each once."""
    labels = [methods] if isinstance(methods, str) else list(methods)
    every = [name for name in METHODS if name != ENDLESS or seconds is not None]
    listed = [name for label in labels for name in (every if label == ALL else [label])]
    for label in listed:
        if not isinstance(label, str):
            raise InputError(f"methods: must be names, got {label!r}")
    return [Entrant(label) for label in dict.fromkeys(listed)]


def _posed(question: Scenario | Oracle) -> Shared[Question] | str:
    """A prepared question, or why it cannot be searched."""
    try:
        return Shared(question_of(question))
    except InputError as error:
        return str(error)


def _run(point: Point, record: Row | None, question: Shared[Question] | str) -> Run:
    name, entrant, seed = point
    if record is not None and "reason" not in record:
        return run_of(name, entrant.label, seed, record)
    reason = question if isinstance(question, str) else NEVER_BEGAN
    return Run(name, entrant.label, seed, reason=record["reason"] if record else reason)


def _records(
    tasks: Mapping[Point, Task],
    n_jobs: int | None,
    journal: str | os.PathLike[str] | None,
    progress: bool | None,
) -> tuple[dict[Point, Row], bool]:
    """The record of every task, from the journal or made now, and whether an interrupt ended the
    loop before all were there.
    """
    # A digest reads a whole question, so it is made only for a journal.
    questions = {task.question for task in tasks.values()} if journal else ()
    digests = {question: question.value.digest for question in questions}
    keys = {
        point: task.key(digests[task.question]) if journal else str(number)
        for number, (point, task) in enumerate(tasks.items())
    }
    rows, is_interrupted = dict[str, Row](), False
    with journaled(
        "search", answer, n_jobs, __version__, journal, progress, set(keys.values()),
        total=len(tasks), desc="compare", leave=False,
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {n:.1f}/{total} runs "
        "[{elapsed}<{remaining}{postfix}]",
    ) as loop:  # fmt: skip
        is_seen = is_serial(n_jobs) and not loop.bar.disable
        jobs = {
            keys[point]: replace(task, progress=_heard(loop.bar, task) if is_seen else None)
            for point, task in tasks.items()
        }
        try:
            for key, row in loop.rows(jobs):
                rows[key] = row
                loop.done(len(rows))
                if row.get("provenance", {}).get("ended") == "interrupted":
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            if not rows:
                raise
            is_interrupted = True
    return {point: rows[key] for point, key in keys.items() if key in rows}, is_interrupted


def _heard(bar: Any, task: Task) -> Callable[[int], object]:
    """A function that moves the bar at each evaluation: by a share of a run, where the run's budget
    is known.
    """
    begun, label = None, task.entrant.label
    limit = task.terms.budget or METHODS[task.entrant.method].budget

    def heard(evaluations: int) -> None:
        nonlocal begun
        begun = bar.n if begun is None else begun
        bar.set_postfix_str(f"{label}, seed {task.seed}, {evaluations:,} ev", refresh=False)
        bar.update(begun + min(evaluations / limit, 1) - bar.n if limit else 0)

    return heard
