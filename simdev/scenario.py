"""Scenario, one runnable question, and ``run``, which answers it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .cluster import Cluster
from .errors import InputError
from .graph import Graph
from .profile import RUNGS, CostModel
from .strategy import Strategy, resolve_placement

if TYPE_CHECKING:
    from .analysis import Report
    from .lowering import Prepared
    from .trace import Trace


@dataclass(frozen=True, slots=True)
class Scenario:
    """A graph on a cluster, what its ops cost, how it is spread, and the engine to ask ("auto": the fastest here)."""

    graph: Graph
    cluster: Cluster
    costs: CostModel
    strategy: Strategy
    engine: str = "auto"

    def __post_init__(self) -> None:
        from .engine import ENGINES

        if self.engine not in ("auto", *ENGINES):
            choice = ", ".join(("auto", *ENGINES))
            raise InputError(f'engine: "{self.engine}" is not available in this version of simdev; there are {choice}')


@dataclass(frozen=True, slots=True)
class Outcome:
    """The trace of a scenario with the share of the op time by the rung of the cost ladder that told it."""

    trace: Trace
    rungs: Mapping[str, float]


def load_scenario(path: str | os.PathLike[str] | Mapping[str, Any]) -> Scenario:
    """The scenario of a file (or of an object of the same shape).

    Raises InputError with every problem of every file that it names.
    """
    from .files import read_scenario

    parts = read_scenario(path)
    try:
        return Scenario(parts.graph, parts.cluster, CostModel(parts.profiles), parts.strategy, parts.engine)
    except InputError as error:
        file = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        raise InputError([f"options.{problem}" for problem in error.problems], file) from None


def execute(scenario: Scenario) -> Outcome:
    """Lower and simulate. Raises InputError, MissingCostError, DeadlockError."""
    from .engine import simulate
    from .lowering import Prepared, lower_prepared

    prepared = Prepared(scenario.graph, scenario.cluster, scenario.costs)
    task_graph = lower_prepared(prepared, scenario.strategy)
    return Outcome(simulate(task_graph, scenario.engine), rung_shares(prepared, scenario.strategy))


def rung_shares(prepared: Prepared, strategy: Strategy) -> dict[str, float]:
    """The share of the summed op time by rung, for the rungs that told any; empty where no op takes time."""
    totals = dict.fromkeys(RUNGS, Fraction(0))
    placement = resolve_placement(prepared.graph, prepared.cluster, strategy.placement)
    for op, device in enumerate(placement):
        cost = prepared.cost(op, device)
        if cost is not None:
            totals[cost.rung] += cost.seconds
    total = sum(totals.values())
    return {rung: float(seconds / total) for rung, seconds in totals.items() if seconds}


def run(scenario: Scenario) -> Report:
    """The answer: lower, simulate, analyze. Raises InputError, MissingCostError, DeadlockError.

    A step that does not fit is an answer and no error (``Report.feasible``).
    """
    from .analysis import analyze

    outcome = execute(scenario)
    return analyze(outcome.trace, outcome.rungs)
