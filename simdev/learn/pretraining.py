"""``train`` trains one policy on several graphs, so that it can place others.

``simdev train`` calls it. A method takes part by the ``general`` of its row in ``methods``; the
files of policies are ``simdev.search.policy``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, Protocol

import numpy as np

from ..execution.scenario import Scenario
from ..files.reading import PathLike
from ..ground.errors import InputError, prefixed, within
from ..oracle import Oracle
from ..search.features import VERSION
from ..search.learners import LearnerOptions, Settings, requested, require_torch
from ..search.methods import METHODS
from ..search.policy import SavedPolicy, require_policy
from ..search.run import check_limits, oracle_and_strategy, problem_of
from ..search.trial import Budget, SpentError, Trial, rounds
from .families import Family, scenarios_of

Question = Scenario | Oracle
EVALUATIONS = 1000  # by default, of each graph; ours


class GeneralLearner(Protocol):
    """A policy in training that learns from several graphs.

    It is made from the first trial (``METHODS[name].general``): from its ``learning`` (settings, a
    policy to begin with), its budget's seed and its number of devices; and is kept as the
    ``policy`` of that trial. Each trial is a graph; all share one budget, so an evaluation of one
    counts for all, and its ``random`` and ``share`` belong to the whole training. The learner keeps
    further state of a graph (features, baselines) by its trial, which is passed again in each turn.
    """

    graphs: int
    """The most graphs that an update learns from at once."""

    def update(self, trials: Sequence[Trial]) -> None:
        """Evaluate placements of these graphs, and learn from all of them. Raises SpentError."""


@dataclass(frozen=True, slots=True)
class Practised:
    """A graph that a policy was trained on: its name, the number of its groups, the number of
    different placements that were evaluated, and the best step among them.
    """

    name: str
    groups: int
    evaluations: int
    step_time_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The result of a training: the policy, and the figures of each graph.

    ``provenance`` has the method, its settings, the limits, the evaluations and seconds used, and
    ``ended``: "done" (no new placements were sampled any more), "budget", "time" or "interrupted".
    """

    policy: SavedPolicy = field(repr=False)
    graphs: tuple[Practised, ...]
    provenance: Mapping[str, Any]


def train(
    method: str,
    questions: str | Family | Sequence[Question],
    budget: int | None = None,
    seed: int = 0,
    seconds: float | None = None,
    prepare: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None,
    settings: Settings | object | None = None,
    policy: SavedPolicy | PathLike | None = None,
    n_jobs: int | None = None,
) -> Trained:
    """Train one policy of a learner on several graphs in turn: a family (its name, or a Family,
    whose training graphs are used), a folder of scenarios, or any questions with equally many
    devices. Where a name is also that of a folder, the folder is used.

    ``budget`` is the number of placements that may be evaluated over all graphs (None: 1,000 each,
    or any number where ``seconds`` are given). Each round takes the graphs in a new random order.
    Other arguments are as in ``search``; Ctrl-C ends with the current policy. Raises InputError,
    also for a method whose policies are tied to one graph.
    """
    check_limits(method, budget, seed, seconds, prepare)
    _require_general(method)
    learning = requested(method, LearnerOptions(settings, None, policy, True, n_jobs))
    assert learning is not None  # a general learner is a learner
    require_torch(method)
    given = _questions(questions)
    limit = EVALUATIONS * len(given) if budget is None and seconds is None else budget
    limits = Budget(limit, seconds, seed, progress)
    names = METHODS[method].prepare if prepare is None else tuple(prepare)
    trials = []
    for label, question in given.items():
        with within(label):
            trials.append(_trial(question, method, names, limits))
    for trial in trials:
        trial.learning = learning
        if learning.policy is not None:
            with prefixed("policy: "):
                require_policy(learning.policy, method, VERSION, trial.problem.oracle)
    _require_alike(trials)
    learner: GeneralLearner = resolve_name(f"simdev.{METHODS[method].general}")(trials[0])
    ended = _practise(learner, trials, limits.random)
    assert trials[0].policy is not None  # the learner has kept it there
    return Trained(
        trials[0].policy.saved(),
        tuple(map(_practised, trials)),
        {
            "method": method,
            "seed": limits.seed,
            "budget": limits.limit,
            "prepare": list(names),
            **learning.provenance(),
            "evaluations": limits.evaluations,
            "cpu_seconds": limits.cpu_seconds,
            "seconds": limits.wall_seconds,
            "ended": ended,
        },
    )


def _require_general(method: str) -> None:
    """Raises InputError for a method whose policies cannot place other graphs."""
    if METHODS[method].general is None:
        general = ", ".join(name for name in METHODS if METHODS[name].general)
        tied = "its policies are tied to one graph" if METHODS[method].learner else "is no learner"
        raise InputError(f"method: {method}: {tied}; there are {general}")


def _questions(questions: str | Family | Sequence[Question]) -> Mapping[str, Question]:
    """The graphs to train on by the names that messages use. Raises InputError where there are
    none.
    """
    if isinstance(questions, str):
        return scenarios_of(questions)
    given = questions.train if isinstance(questions, Family) else tuple(questions)
    if not given:
        raise InputError("questions: there must be a graph to train on")
    return {f"questions[{i}]": question for i, question in enumerate(given)}


def _trial(question: Question, method: str, prepare: Sequence[str], budget: Budget) -> Trial:
    oracle, strategy = oracle_and_strategy(question)
    return Trial(problem_of(oracle, strategy, method, METHODS[method], prepare), budget)


def _require_alike(trials: Sequence[Trial]) -> None:
    """Raises InputError where graphs have different numbers of devices."""
    counts = sorted({len(trial.problem.oracle.cluster.devices) for trial in trials})
    if len(counts) > 1:
        texts = " and ".join(map(str, counts))
        raise InputError(f"questions: a policy is of one number of devices; there are {texts}")


def _practise(learner: GeneralLearner, trials: Sequence[Trial], random: np.random.Generator) -> str:
    """Train until the budget is used up, or PATIENCE rounds bring nothing new; returns why it
    ended.
    """
    budget, turns = trials[0].budget, _turns(len(trials), learner.graphs, random)
    try:
        for _ in rounds(*trials):
            for _ in range(-(-len(trials) // learner.graphs)):
                learner.update([trials[turn] for turn in next(turns)])
    except SpentError:
        return "budget" if budget.seconds_left else "time"
    except KeyboardInterrupt:
        return "interrupted"
    return "done"


def _turns(count: int, size: int, random: np.random.Generator) -> Iterator[list[int]]:
    """The graphs (of ``count``) that learn together, ``size`` at a time: round after round, each
    round in a new random order.
    """
    waiting = list[int]()
    while True:
        while len(waiting) < size:
            waiting += random.permutation(count).tolist()
        yield waiting[:size]
        del waiting[:size]


def _practised(trial: Trial) -> Practised:
    oracle, best = trial.problem.oracle, trial.best.base
    seconds = None if best is None else best[1].seconds
    return Practised(oracle.graph.name, len(oracle.groups), trial.distinct, seconds)
