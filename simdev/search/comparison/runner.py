"""``run_comparison`` asks every method every question, ``compare`` is its table."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from numbers import Integral
from typing import TYPE_CHECKING, Any

from ...execution.scenario import Scenario, fingerprint
from ...ground.errors import InputError, steered
from ...ground.jobs import Died, finished, is_serial
from ...ground.version import __version__
from ...nouns.cluster import Cluster, Device
from ...nouns.graph import Graph, Op, Tensor
from ...nouns.strategy import Strategy
from ...oracle import Oracle
from ..learners import LearnerOptions, requested
from ..methods import METHODS
from ..run import check_limits, search, search_oracle
from ..sweep import Journal
from ..sweep.answer import Memo, bug
from ..sweep.point import sources_version
from ..trial import REFUSED, Budget
from .comparison import Comparison
from .questions import Question, question_of, references_of
from .runs import Entrant, References, Run, record_of, run_of

if TYPE_CHECKING:
    import pandas as pd

# Tasks: one run of a comparison to be made, here or in a worker process.

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


ALL = "all"
ENDLESS = "exhaustive"  # nothing but a limit in time ends it on large graphs
SEEDS = 5
NEVER_BEGAN = "interrupted before it began"


Record = Mapping[str, Any]


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
        Names, or learners with the method that they imitate first, "post+m-sct". "all" are all
        methods, exhaustive search only where ``seconds`` end it.
    questions
        Scenarios or Oracles by name; each is prepared once, for all methods.
    budget, seconds, prepare
        As ``search`` has them, for every method; methods that split ops take no preparation.
    seed, seeds
        The first seed, and how many: ``seed``, ``seed + 1``, ... A method that draws nothing at
        random runs once.
    settings, warm
        Options of ``search`` for the learners.
    n_jobs
        So many runs at once (``simdev.ground.jobs``), which changes no answer, but what ends in
        time.
    journal
        A file to which every finished run is appended at once. A comparison that finds runs there
        does not make them again, as long as neither the question nor simdev has changed.
    progress
        Whether to show a bar on stderr, from two seconds on; None: where stderr is a terminal.

    Notes
    -----
    A method that refuses a question has a run with the reason. Ctrl-C ends with what is there, and
    with the best so far of the run under way. Raises InputError for a method that is not there, for
    limits that are none, and for a journal that cannot be written; KeyboardInterrupt where nothing
    is there yet.
    """
    entrants = _entrants(methods, seconds)
    for entrant in entrants:
        _check(entrant, budget, seed, seconds, prepare, warm)
    _check_seeds(seeds)
    if not isinstance(questions, Mapping):
        raise InputError(f"questions: must be Scenarios or Oracles by name, got {questions!r}")
    limit = None if budget is None else int(budget)  # a NumPy number is no JSON
    names = None if prepare is None else tuple(prepare)
    terms = Terms(limit, seconds, names, settings, warm)
    posed, refused = _posed(questions)
    tasks = [
        Task(name, entrant, int(seed) + turn, terms)
        for name in questions
        for entrant in entrants
        for turn in range(int(seeds) if METHODS[entrant.method].draws else 1)
    ]
    some = [task for task in tasks if task.question in posed]
    records, is_interrupted = _records(some, posed, n_jobs, journal, progress)
    reasons = {name: str(error) for name, error in refused.items()}
    runs = tuple(_run(task, records.get(task), reasons.get(task.question)) for task in tasks)
    beside = {name: posed[name].references if name in posed else References() for name in questions}
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
    """The table that papers print: every method on every scenario or oracle, a row each, in this
    order (``Comparison.table`` tells its columns), with the options of ``run_comparison``.
    """
    limits = budget, seed, seconds, prepare
    return run_comparison(methods, questions, *limits, seeds=seeds, **options).table


def _entrants(methods: str | Iterable[str], seconds: float | None) -> list[Entrant]:
    """The methods as they are listed, each once."""
    labels = [methods] if isinstance(methods, str) else list(methods)
    every = [name for name in METHODS if name != ENDLESS or seconds is not None]
    listed = [name for label in labels for name in (every if label == ALL else [label])]
    for label in listed:
        if not isinstance(label, str):
            raise InputError(f"methods: must be names, got {label!r}")
    return [Entrant(label) for label in dict.fromkeys(listed)]


def _check(
    entrant: Entrant,
    budget: object,
    seed: object,
    seconds: object,
    prepare: object,
    warm: str | None,
) -> None:
    """Raises InputError for what goes with no question at all."""
    check_limits(entrant.method, budget, seed, seconds, prepare)
    is_learner = METHODS[entrant.method].learner is not None
    requested(entrant.method, LearnerOptions(warm=entrant.warm or (warm if is_learner else None)))


def _check_seeds(seeds: object) -> None:
    if isinstance(seeds, bool) or not isinstance(seeds, Integral) or int(seeds) < 1:
        raise InputError(f"seeds: must be a whole number of at least 1, got {seeds!r}")


def _posed(
    questions: Mapping[Any, Scenario | Oracle],
) -> tuple[dict[Hashable, Question], dict[Hashable, InputError]]:
    """The questions that can be asked, and why the others cannot."""
    posed, refused = dict[Hashable, Question](), dict[Hashable, InputError]()
    for name, question in questions.items():
        try:
            posed[name] = question_of(name, question)
        except InputError as error:
            refused[name] = error
    return posed, refused


def _run(task: Task, record: Record | None, refused: str | None) -> Run:
    label = task.entrant.label
    if record is None or "reason" in record:
        reason = record["reason"] if record is not None else refused or NEVER_BEGAN
        return Run(task.question, label, task.seed, reason=reason)
    return run_of(task.question, label, task.seed, record)


def _records(
    tasks: Sequence[Task],
    posed: Mapping[Hashable, Question],
    n_jobs: int | None,
    journal: str | os.PathLike[str] | None,
    progress: bool | None,
) -> tuple[dict[Task, Record], bool]:
    """The record of every task, from the journal or made now, and whether somebody ended it before
    all were there.
    """
    from tqdm import tqdm

    # A digest reads all of a question: only what outlives the process needs one.
    digests = {name: question.digest for name, question in posed.items()} if journal else {}
    keys = {task: task.key(digests[task.question]) if journal else "" for task in tasks}
    records: dict[Task, Record] = {}
    hidden = None if progress is None else not progress
    book = Journal(journal, set(keys.values()), "search") if journal else nullcontext()
    with book as kept, tqdm(
        total=len(tasks), delay=2, disable=hidden, desc="compare", file=steered(sys.stderr),
        leave=False,
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {n:.1f}/{total} runs "
        "[{elapsed}<{remaining}{postfix}]",
    ) as bar:  # fmt: skip
        if kept is not None:
            records = {task: kept.rows[key] for task, key in keys.items() if key in kept.rows}
        bar.update(len(records))
        missing = [task for task in tasks if task not in records]
        try:
            for task, record in _answers(missing, posed, n_jobs, bar):
                records[task] = record
                if kept is not None and is_lasting(record):
                    kept.add(keys[task], __version__, record)
                bar.update(len(records) - bar.n)
                if record.get("provenance", {}).get("ended") == "interrupted":
                    return records, True
        except KeyboardInterrupt:
            if not records:
                raise
            return records, True
    return records, False


def _answers(
    tasks: Sequence[Task], posed: Mapping[Hashable, Question], n_jobs: int | None, bar: Any
) -> Iterator[tuple[Task, Record]]:
    """The records of tasks as they are finished; here in their order."""
    if is_serial(n_jobs):
        for task in tasks:
            question = posed[task.question]
            heard = None if bar.disable else _heard(bar, task)
            yield task, answer(question.oracle, question.given, task, heard)
        return
    data = {name: pickle.dumps((its.oracle, its.given)) for name, its in posed.items()}
    names = {name: blake2b(its, digest_size=16).hexdigest() for name, its in data.items()}
    numbered = {str(number): task for number, task in enumerate(tasks)}
    parcels = {
        number: Parcel(names[task.question], data[task.question], task)
        for number, task in numbered.items()
    }
    for number, record in finished(answer_parcel, parcels, n_jobs):
        yield (
            numbered[number],
            {"reason": record.reason} if isinstance(record, Died) else record,
        )


def _heard(bar: Any, task: Task) -> Callable[[int], object]:
    """What moves the bar at each evaluation: by a share of a run, as far as its end is known."""
    begun, label = bar.n, task.entrant.label
    limit = task.terms.budget or METHODS[task.entrant.method].budget

    def heard(evaluations: int) -> None:
        bar.set_postfix_str(f"{label}, seed {task.seed}, {evaluations:,} ev", refresh=False)
        bar.update(begun + min(evaluations / limit, 1) - bar.n if limit else 0)

    return heard
