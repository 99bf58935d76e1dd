"""``run_comparison`` asks every method every question, ``compare`` is its table."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from hashlib import blake2b
from numbers import Integral
from typing import TYPE_CHECKING, Any

from ...execution.scenario import Scenario
from ...ground.errors import InputError, steered
from ...ground.jobs import Died, finished, is_serial
from ...ground.version import __version__
from ...oracle import Oracle
from ..learners import LearnerOptions, requested
from ..methods import METHODS
from ..run import check_limits
from ..sweep import Journal
from .comparison import Comparison
from .questions import Question, question_of
from .runs import Entrant, References, Run, run_of
from .tasks import Parcel, Task, Terms, answer, answer_parcel, is_lasting

if TYPE_CHECKING:
    import pandas as pd

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
