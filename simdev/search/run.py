"""``search`` runs one method on one question, from the call to its Result.

Steps: check the arguments, make the problem of the method, choose the start of a learner, run the
method within the budget, and return the best as a Result. ``search_oracle`` does this for a
comparison, which has already prepared its oracles and checked its limits.

A new argument of ``search`` is also an option in ``simdev/commands/search.py``; where it holds for
comparisons, a field of ``Terms`` in ``comparison/__init__.py``; where only learners take it, a
field of ``LearnerOptions`` in learners.py.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from numbers import Integral, Real
from typing import Any, Protocol

from ..execution.scenario import Scenario
from ..files.reading import PathLike
from ..ground.errors import InputError, prefixed
from ..ground.jobs import is_serial, require_joblib
from ..ground.version import __version__
from ..nouns.strategy import Strategy
from ..nouns.taskgraph import Ints
from ..oracle import Cost, Oracle, oracle_of
from .features import VERSION
from .learners import LearnerOptions, Settings, requested, require_torch
from .methods import METHODS, Method, name_of
from .policy import SavedPolicy, require_policy
from .prepare import Adjusted
from .prepare import prepare as make_smaller
from .result import Result
from .sampling import anywhere
from .space import IMPOSSIBLE, mean_ps, obstacles, rank_of
from .trial import (
    ALONE,
    AUTO,
    RANDOM,
    Budget,
    Chaining,
    Learning,
    SearchProblem,
    SpentError,
    Trial,
    best_start,
)

MATTERS = ("numpy", "numba", "scipy")  # packages whose version may change an answer
EVALUATED = 100  # placements drawn from a policy that is only evaluated, not trained; ours
HANDFUL = 10  # random placements that the best start is compared with (``begin``); ours
FREE = 1000  # default budget of a method that the caller wrote


class AskTell(Protocol):
    """A method that the caller wrote. Placements are device indices by group
    (``oracle.groups``).
    """

    def ask(self) -> Ints:
        """The next placement to try."""

    def tell(self, placement: Ints, cost: Cost) -> None:
        """Receive the cost of the placement that ``ask`` returned last."""


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
    policy: SavedPolicy | PathLike | None = None,
    train: bool = True,
    n_jobs: int | None = None,
    chains: int | None = None,
) -> Result:
    """Run a method: a name of METHODS, or an object with ``ask`` and ``tell``.

    ``budget`` is the number of placements that may be evaluated (None: the method's default;
    unlimited where ``seconds`` are given), ``seconds`` the time limit; at least one placement is
    evaluated. ``prepare`` names preparations of the graph in place of the method's defaults.
    ``progress`` is called with the number of evaluations so far. The same seed and budget give the
    same answer; a limit in seconds, or Ctrl-C, ends with the best so far. A scenario's own
    placement is one of the starts of local search, whatever the preparation. Where a method's plan
    is impossible (between devices without a route), or is not ready in time, the answer is the best
    of these starts, even beyond the limits.

    ``chains`` is the number of walks of a local search, which exchange their placements; the answer
    depends on it. ``n_jobs`` is the number of processes that work on them (``simdev.ground.jobs``);
    the answer does not depend on it.

    Options of learners (docs/how-to/learning.md): ``settings`` by name, or as a text like
    "published,hidden=128"; ``warm`` is the start that they imitate first: "auto", "random" or a
    method's name; ``policy`` a saved policy to begin with, which ``train=False`` only evaluates;
    ``n_jobs`` as above.

    Raises InputError for an unknown method or preparation, wrong limits, a group without any
    possible device, a question without any possible placement, and a malformed placement from
    ``ask``.
    """
    check_limits(method, budget, seed, seconds, prepare)
    chaining = chaining_of(method, chains, n_jobs)
    jobs = n_jobs if chains is None else None
    learning = requested(method, LearnerOptions(settings, warm, policy, train, jobs))
    limits = Budget(budget, seconds, seed, progress)  # its clock runs: preparing an oracle counts
    oracle, given = oracle_and_strategy(question)
    return search_oracle(oracle, given, method, limits, prepare, learning, chaining)


# The arguments.


def check_limits(
    method: object, budget: object, seed: object, seconds: object, prepare: object
) -> None:
    """Raises InputError for arguments that are wrong whatever the scenario."""
    if isinstance(method, str):
        if method not in METHODS:
            raise InputError(f'method: must be one of {", ".join(METHODS)}, got "{method}"')
    elif isinstance(method, type) or not (
        callable(getattr(method, "ask", None)) and callable(getattr(method, "tell", None))
    ):
        raise InputError(f"method: must be a name, or an object with ask and tell, got {method!r}")
    if isinstance(prepare, str):
        raise InputError(f'prepare: must be a list of names, got "{prepare}"')
    require_whole("seed", seed, 0)
    require_whole("budget", 1 if budget is None else budget)
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, Real) or not float(seconds) > 0
    ):
        raise InputError(f"seconds: must be a number > 0, got {seconds!r}")


def require_whole(name: str, value: object, least: int = 1) -> int:
    """A whole number. Raises InputError for anything else, and for one below ``least``."""
    # A bool is an Integral too, but is refused as a number.
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InputError(f"{name}: must be a whole number of at least {least}, got {value!r}")
    return int(value)


def chaining_of(method: str | AskTell, chains: object, n_jobs: int | None) -> Chaining:
    """The chains of a search. Raises InputError for a malformed number of chains, and for any
    number with a method that does not walk.
    """
    if chains is None:
        return ALONE
    if not isinstance(method, str) or not METHODS[method].chains:
        walkers = ", ".join(name for name in METHODS if METHODS[name].chains)
        raise InputError(
            f"chains: goes with methods that walk ({walkers}), not with {name_of(method)}"
        )
    count = require_whole("chains", chains)
    if not is_serial(n_jobs):
        require_joblib()
    return Chaining(count, None if n_jobs is None else int(n_jobs))


def oracle_and_strategy(question: Scenario | Oracle) -> tuple[Oracle, Strategy]:
    """The oracle of a question, and the strategy that the question already has.

    Raises InputError for anything but a scenario or an oracle, and for a fixed order.
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


# The run.


def search_oracle(
    oracle: Oracle,
    given: Strategy,
    method: str | AskTell,
    budget: Budget,
    prepare: Sequence[str] | None,
    learning: Learning | None,
    chaining: Chaining = ALONE,
) -> Result:
    """Run a method on a prepared oracle within checked limits; ``given`` is the strategy that came
    with it.
    """
    name = name_of(method)
    chosen = METHODS[method] if isinstance(method, str) else Method("", budget=FREE)
    names = chosen.prepare if prepare is None else tuple(prepare)
    if budget.limit is None and budget.seconds is None:
        evaluates = learning is not None and not learning.train
        budget.limit = EVALUATED if evaluates else chosen.budget
    provenance = {
        "method": name,
        "seed": budget.seed,
        "budget": budget.limit,
        "prepare": list(names),
    }
    provenance |= {} if learning is None else learning.provenance()
    provenance |= {"chains": chaining.count} if chaining.count > 1 else {}
    trial = Trial(problem_of(oracle, given, name, chosen, names), budget)
    trial.chaining = chaining
    provenance["groups"] = None if chosen.splits else len(trial.problem.choices)
    provenance["ended"] = _run(trial, method, learning, prepare)
    fall_back(trial)
    return _result(trial, chosen, provenance)


def problem_of(
    oracle: Oracle, given: Strategy, name: str, method: Method, preparations: Sequence[str]
) -> SearchProblem:
    """The problem of a method after preparations. Raises InputError where the method cannot plan
    it.
    """
    if preparations and method.splits:
        raise InputError(
            f"prepare: {name} splits the ops of the graph as it is; it takes no preparation"
        )
    if not oracle.graph.ops:
        raise InputError("graph: there is nothing to place")
    ranked = [oracle.graph.ops[i].name for i in oracle.prepared.rings]
    if ranked and not method.ranks:
        raise InputError(
            f'{name}: "{ranked[0]}" runs on several devices at once, which this method cannot plan'
        )
    times = mean_ps(oracle.prepared.duration).tolist()
    grouped = make_smaller(oracle.graph, preparations, times)
    # After "adjust" ops are planned freely, but the oracle judges placements with the groups.
    together = grouped.original if isinstance(grouped, Adjusted) else grouped.colocated
    inner = oracle if together == oracle.graph else oracle.on(together)
    problem = SearchProblem(inner, grouped, oracle, given)
    _ = problem.choices  # raises for a group without a possible device, whatever the method
    return problem


def _run(
    trial: Trial, method: str | AskTell, learning: Learning | None, prepare: Sequence[str] | None
) -> str:
    """Run a method until it ends; return why it ended."""
    budget = trial.budget
    try:
        if isinstance(method, str):
            if learning is not None:
                trial.learning = _beginning(trial, method, learning, prepare)
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


def fall_back(trial: Trial) -> None:
    """Make the best start the answer, beyond all limits, where a method has evaluated no possible
    placement: its plan was not ready in time, or was impossible.
    """
    if trial.best.points:
        return
    trial.best.details["planned"] = False
    trial.budget.limit = trial.budget.seconds = None
    best_start(trial)


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
    """The best strategy and its whole cost: a walk gives no peaks where no memory is limited.

    Raises the last refusal where there is no answer.
    """
    best, oracle = trial.best, trial.problem.whole
    if best.strategy is not None:
        strategy, cost = best.strategy
    elif best.placement is not None:
        strategy, cost = oracle.strategy(best.placement[0]), best.placement[1]
    else:
        raise best.refused or InputError("search: no placement was found that can be")
    return strategy, cost if cost.peaks else oracle(strategy)


# The start that a learner imitates.


def _beginning(
    trial: Trial, method: str, learning: Learning, prepare: Sequence[str] | None
) -> Learning:
    """The start of a learner, scored; noted in ``details`` of the trial.

    Preparations that the caller names hold for the imitated method too; with None each method uses
    its defaults. So the start is equal to the row of that method in a comparison. Raises
    SpentError, InputError where PyTorch is missing, and InputError or DeadlockError where the start
    has no answer.
    """
    # Here, not where options are checked: a comparison goes on without a method that is refused.
    require_torch(method)
    best, start = trial.best, learning.start
    if learning.policy is not None:
        with prefixed("policy: "):
            require_policy(learning.policy, method, VERSION, trial.problem.oracle)
        return replace(learning, beginning="policy")
    if start == RANDOM:
        return learning
    names, split = None, False
    if start == AUTO:
        row = begin(trial)
        cost = IMPOSSIBLE if row is None else trial.score_once(row)
    else:
        names = METHODS[start].prepare if prepare is None else prepare
        row, cost, split = _imitated(trial, learning, names)
    if cost is IMPOSSIBLE:  # no learner shall imitate an impossible placement
        row = None
    name = "the best start" if start == AUTO else start
    best.details["warm"] = {
        "name": start,
        "beginning": RANDOM if row is None else name,
        "prepare": None if names is None else list(names),
        "step_time_s": best.points[-1].step_ps / 1e12 if best.points else None,
        "imitated_s": None if row is None else cost.seconds,
        "split": split,
        "evaluations": trial.budget.evaluations,
    }
    return learning if row is None else replace(learning, warm=row, beginning=name)


def begin(trial: Trial) -> Ints | None:
    """The placement to imitate first (devices by group), or None to begin at random.

    Ours: score the starts of local search, then a handful of random placements. The start is
    imitated only where it beats all of these: a learner that began at random would then see nothing
    but losses, for almost all placements lose to one device where transfers are expensive.
    """
    column = best_start(trial)
    if column is None:
        return None
    oracle = trial.problem.oracle
    assert trial.best.base is not None  # it is the start
    start = trial.best.base[1]
    trial.adopt(column, start)
    rows = anywhere(trial.problem.allowed, trial.budget.random, HANDFUL)
    best = min(rank_of(oracle, trial.score_once(row)) for row in rows)
    return trial.problem.by_group(column)[0] if rank_of(oracle, start) < best else None


def _imitated(
    trial: Trial, learning: Learning, preparations: Sequence[str]
) -> tuple[Ints, Cost, bool]:
    """The answer of the method to imitate by the groups of this problem, its cost, and whether it
    splits some of these groups.

    That method searches the whole question, after its own preparations and with a share of the
    budget. Its evaluations count in this search, which keeps its best. Raises InputError or
    DeadlockError where it has no answer.
    """
    name, whole = learning.start, trial.problem.whole
    method = METHODS[name]
    with prefixed("warm: "):
        problem = problem_of(whole, trial.problem.given, name, method, preparations)
        inner = Trial(problem, trial.budget.part(learning.share, method.budget), trial)
        with suppress(SpentError):
            method.run(inner)
        fall_back(inner)
        if inner.best.placement is None:
            raise inner.best.refused or InputError(f"{name}: no placement was found that can be")
    column, cost = inner.best.placement
    row, split = trial.problem.by_group(column)
    if not split:
        trial.adopt(column, cost)
    return row, trial.score_once(row), split
