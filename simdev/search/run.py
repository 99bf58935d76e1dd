"""``search`` runs one method on one scenario or oracle."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from numbers import Integral, Real
from typing import Any, Protocol

from ..execution.scenario import Scenario
from ..ground.errors import InputError
from ..ground.jobs import is_serial, require_joblib
from ..ground.version import __version__
from ..nouns.strategy import Strategy
from ..nouns.taskgraph import Ints
from ..oracle import Cost, Oracle, oracle_of
from .budget import ALONE, Budget, Chaining, SpentError
from .holding import obstacles
from .learners import EVALUATED, LearnerOptions, Request, beginning, requested
from .learning.settings import Settings
from .methods import METHODS, Method
from .policy import SavedPolicy
from .result import Result
from .running import fall_back, problem_of
from .trial import Trial

MATTERS = ("numpy", "numba", "scipy")  # packages whose version may change an answer


class AskTell(Protocol):
    """A method of the caller's. Placements are device indices by group (``oracle.groups``)."""

    def ask(self) -> Ints:
        """The next placement to try."""

    def tell(self, placement: Ints, cost: Cost) -> None:
        """What the placement that was asked for costs."""


def search(
    question: Scenario | Oracle,
    method: str | AskTell,
    budget: int | None = None,
    seed: int = 0,
    seconds: float | None = None,
    prepare: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None,
    settings: Settings | object | None = None,
    warm: str | None = None,
    policy: SavedPolicy | str | os.PathLike[str] | None = None,
    train: bool = True,
    n_jobs: int | None = None,
    chains: int | None = None,
) -> Result:
    """Run a method: a name of METHODS, or an object with ``ask`` and ``tell``.

    ``budget`` is how many placements may be evaluated (None: the method's own; unlimited where
    ``seconds`` are given), ``seconds`` how long it may take; at least one is evaluated. ``prepare``
    names preparations of the graph in place of the method's own. ``progress`` is called with the
    number of evaluations so far. The same seed and budget give the same answer; a limit in seconds,
    or Ctrl-C, ends with the best so far. A scenario's own placement is one of the starts of local
    search, whatever the preparation. Where what a method plans cannot be (between devices without a
    route), or is not ready in time, the best of these starts is the answer, beyond the limits.

    ``chains`` is how many walks a local search keeps, which exchange where they stand; the answer
    depends on it. ``n_jobs`` is how many processes work on them (``simdev.ground.jobs``),
    which changes no answer.

    Options of learners (docs/how-to/learning.md): ``settings`` by name, or as a text like
    "published,hidden=128"; ``warm`` is what they imitate first: "auto", "random" or a method's
    name; ``policy`` a saved policy to begin with, which ``train=False`` evaluates only; ``n_jobs``
    as above.

    Raises InputError for a method or preparation that is not there, limits that are none, a group
    that can stand nowhere, where no placement can be, and for a malformed one that an object
    proposes.
    """
    check_limits(method, budget, seed, seconds, prepare)
    chaining = chaining_of(method, chains, n_jobs)
    jobs = n_jobs if chains is None else None
    request = requested(method, LearnerOptions(settings, warm, policy, train, jobs))
    limits = Budget(budget, seconds, seed, progress)  # its clock runs: preparing an oracle counts
    searched = oracle_and_strategy(question)
    return search_oracle(*searched, method, limits, prepare, request, chaining)


def oracle_and_strategy(question: Scenario | Oracle) -> tuple[Oracle, Strategy]:
    """The oracle of what is searched, and the strategy that it has by now.

    Raises InputError where it is neither a scenario nor an oracle, or under a fixed order.
    """
    if not isinstance(question, (Scenario, Oracle)):
        raise InputError(
            "question: must be a Scenario (load_scenario reads files) or an Oracle, got "
            f"{question!r}"
        )
    oracle = question if isinstance(question, Oracle) else oracle_of(question)
    if oracle.order.policy == "fixed":
        raise InputError(
            'order: "fixed" sequences belong to one placement; a search needs fifo, program or '
            "priority"
        )
    return oracle, oracle.under if isinstance(question, Oracle) else question.strategy


def check_limits(
    method: object, budget: object, seed: object, seconds: object, prepare: object
) -> None:
    """Raises InputError for what goes with no scenario at all."""
    if isinstance(method, str):
        if method not in METHODS:
            raise InputError(f'method: must be one of {", ".join(METHODS)}, got "{method}"')
    elif isinstance(method, type) or not (
        callable(getattr(method, "ask", None)) and callable(getattr(method, "tell", None))
    ):
        raise InputError(f"method: must be a name, or an object with ask and tell, got {method!r}")
    if isinstance(prepare, str):
        raise InputError(f'prepare: must be a list of names, got "{prepare}"')
    for name, value, least in (("seed", seed, 0), ("budget", 1 if budget is None else budget, 1)):
        # A bool is an Integral too, and nobody means it as a number.
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
            raise InputError(f"{name}: must be a whole number of at least {least}, got {value!r}")
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, Real) or not float(seconds) > 0
    ):
        raise InputError(f"seconds: must be a number > 0, got {seconds!r}")


def chaining_of(method: str | AskTell, chains: object, n_jobs: int | None) -> Chaining:
    """The chains of a search. Raises InputError for what is no number of them, and for any that is
    given to a method that keeps none.
    """
    if chains is None:
        return ALONE
    if not isinstance(method, str) or not METHODS[method].chains:
        name = method if isinstance(method, str) else type(method).__name__
        walkers = ", ".join(name for name in METHODS if METHODS[name].chains)
        raise InputError(f"chains: goes with methods that walk ({walkers}), not with {name}")
    if isinstance(chains, bool) or not isinstance(chains, Integral) or chains < 1:
        raise InputError(f"chains: must be a whole number of at least 1, got {chains!r}")
    if not is_serial(n_jobs):
        require_joblib()
    return Chaining(int(chains), None if n_jobs is None else int(n_jobs))


def search_oracle(
    oracle: Oracle,
    given: Strategy,
    method: str | AskTell,
    budget: Budget,
    prepare: Sequence[str] | None,
    learner: Request | None,
    chaining: Chaining = ALONE,
) -> Result:
    """Run a method on a prepared oracle, of which ``given`` is the own strategy, within checked
    limits.
    """
    name = method if isinstance(method, str) else type(method).__name__
    chosen = METHODS[method] if isinstance(method, str) else Method("", budget=1000)
    names = chosen.prepare if prepare is None else tuple(prepare)
    if budget.limit is None and budget.seconds is None:
        evaluates = learner is not None and not learner.learning.train
        budget.limit = EVALUATED if evaluates else chosen.budget
    request = {"method": name, "seed": budget.seed, "budget": budget.limit, "prepare": list(names)}
    request |= {} if learner is None else learner.provenance()
    request |= {"chains": chaining.count} if chaining.count > 1 else {}
    trial = Trial(problem_of(oracle, given, name, chosen, names), budget)
    trial.chaining = chaining
    request["groups"] = None if chosen.splits else len(trial.problem.choices)
    ended = _run(trial, method, learner, prepare)
    fall_back(trial)
    return _result(trial, chosen, {**request, "ended": ended})


def _run(
    trial: Trial,
    method: str | AskTell,
    learner: Request | None,
    prepare: Sequence[str] | None,
) -> str:
    """Run a method; why it ended."""
    budget = trial.budget
    try:
        if learner is not None:
            trial.learning = beginning(trial, learner, prepare)
        if isinstance(method, str):
            METHODS[method].run(trial)
            return "done"
        while True:
            placement = method.ask()
            method.tell(placement, trial.score(placement))
    except SpentError:
        return "budget" if budget.seconds_left else "time"
    except KeyboardInterrupt:
        if not trial.best.points:
            raise
        return "interrupted"


def _result(trial: Trial, method: Method, provenance: Mapping[str, Any]) -> Result:
    best, budget = trial.best, trial.budget
    strategy, cost = _answer(trial)
    if best.refused is not None:
        best.details["impossible"] = {"placements": best.refusals, "last": str(best.refused)}
    versions = {"simdev": __version__, "python": platform.python_version()}
    for name in (*MATTERS, "torch") if method.torch else MATTERS:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    used = {
        "evaluations": budget.evaluations,
        "cpu_seconds": budget.cpu_seconds,
        "seconds": budget.wall_seconds,
        "versions": versions,
    }
    return Result(
        strategy,
        cost,
        {"step_time_s": cost.seconds, **best.objectives},
        tuple(best.points),
        {**provenance, **used},
        best.details,
        obstacles(trial.problem.oracle, cost),
        None if trial.policy is None else trial.policy.saved(),
    )


def _answer(trial: Trial) -> tuple[Strategy, Cost]:
    """The best strategy and its whole cost: a walk gives no peaks where nothing is limited.

    Raises why there is none.
    """
    best, oracle = trial.best, trial.problem.whole
    if best.strategy is not None:
        strategy, cost = best.strategy
    elif best.placement is not None:
        strategy, cost = oracle.strategy(best.placement[0]), best.placement[1]
    else:
        raise best.refused or InputError("search: no placement was found that can be")
    return strategy, cost if cost.peaks else oracle(strategy)
