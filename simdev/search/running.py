"""Running a method of the table: the problem it is handed, and what stands where it plans none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ..ground.errors import InputError
from ..nouns.strategy import Strategy
from ..oracle import Oracle
from .budget import SpentError
from .methods import METHODS, Method
from .prepare import Adjusted
from .prepare import prepare as make_smaller
from .space import mean_ps
from .trial import SearchProblem, Trial, best_start


def problem_of(
    oracle: Oracle, given: Strategy, name: str, method: Method, preparations: Sequence[str]
) -> SearchProblem:
    """The problem of a method after preparations. Raises InputError where it cannot be planned."""
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
    # Where ops are placed freely first, groups hold when a placement is judged.
    together = grouped.original if isinstance(grouped, Adjusted) else grouped.colocated
    inner = oracle if together == oracle.graph else oracle.on(together)
    problem = SearchProblem(inner, grouped, oracle, given)
    _ = problem.choices  # raises for a group that can stand nowhere, whatever the method
    return problem


def fall_back(trial: Trial) -> None:
    """Where a method has evaluated nothing that can be (no plan was ready in time, or none can be),
    the best start is the answer: at any price.
    """
    if trial.best.points:
        return
    trial.best.details["planned"] = False
    trial.budget.limit = trial.budget.seconds = None
    best_start(trial)


def run_within(outer: Trial, name: str, share: float, preparations: Sequence[str]) -> Trial:
    """A method's own search of the whole question inside another one, after preparations of its
    own and with a share of the budget: a trial that has ended.

    Its evaluations count in the other one, which keeps its best. Raises InputError or DeadlockError
    where it has no answer.
    """
    method, whole = METHODS[name], outer.problem.whole
    problem = problem_of(whole, outer.problem.given, name, method, preparations)
    trial = Trial(problem, outer.budget.part(share, method.budget), outer)
    with suppress(SpentError):
        method.run(trial)
    fall_back(trial)
    if trial.best.placement is None:
        raise trial.best.refused or InputError(f"{name}: no placement was found that can be")
    return trial
