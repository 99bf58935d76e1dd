"""``search`` runs one method on one question, ``compare`` several on several."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import InputError
from ..graph import Graph
from ..oracle import Cost, Oracle
from ..scenario import Scenario
from ..strategy import Strategy, resolve_placement
from ..taskgraph import Ints
from ..version import __version__
from .methods import METHODS, Method
from .prepare import Adjusted
from .prepare import prepare as make_smaller
from .result import Result, obstacles
from .trial import Clock, SpentError, Trial

if TYPE_CHECKING:
    import pandas as pd

Question = Scenario | Oracle
MATTERS = ("numpy", "numba", "scipy")  # packages whose version may change an answer


class AskTell(Protocol):
    """A method of one's own. Placements are device indices by group (``oracle.groups``)."""

    def ask(self) -> Ints:
        """The next placement to try."""

    def tell(self, placement: Ints, cost: Cost) -> None:
        """What the placement that was asked for costs."""


def oracle_of(question: Question) -> Oracle:
    """The oracle of a scenario, under the order of its queues. Raises InputError for a fixed one."""
    if isinstance(question, Oracle):
        return question
    order = question.strategy.order
    if order.policy == "fixed":
        raise InputError('order: "fixed" sequences belong to one placement; a search needs fifo, program or priority')
    return Oracle(question.graph, question.cluster, question.costs, order, memory=question.memory)


def search(
    question: Question,
    method: str | AskTell,
    budget: int | None = None,
    seed: int = 0,
    seconds: float | None = None,
    prepare: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Result:
    """Run a method: a name of METHODS, or an object with ``ask`` and ``tell``.

    ``budget`` is how many placements may be evaluated (None: the method's own; unlimited where ``seconds`` are given),
    ``seconds`` how long it may take; at least one is evaluated. ``prepare`` names preparations of the graph in place of
    the method's own. ``progress`` is called with the number of evaluations so far. The same seed and budget give the
    same answer; a limit in seconds, or Ctrl-C, ends with the best so far. A scenario's own placement is one of the
    starts of local search.

    Raises InputError for a method or preparation that is not there, limits that are none, a group that can stand
    nowhere, and for a malformed placement that a method of one's own proposes.
    """
    chosen = _method(method)
    names = chosen.prepare if prepare is None else tuple(prepare)
    if names and chosen.splits:
        raise InputError(f"prepare: {method} splits the ops of the graph as it is; it takes no preparation")
    _check_limits(budget, seconds, seed)
    if budget is None and seconds is None:
        budget = chosen.budget
    began = Clock()
    asked = oracle_of(question)
    if not asked.graph.ops:
        raise InputError("graph: there is nothing to place")
    grouped = make_smaller(asked.graph, names)
    together = grouped.original if isinstance(grouped, Adjusted) else grouped.colocated  # groups hold when judged
    inner = asked if together == asked.graph else _regrouped(asked, together)
    start, given = _own_start(question, inner), None if isinstance(question, Oracle) else question.strategy
    trial = Trial(inner, grouped, budget, seconds, seed, start, progress, asked, began, given)
    ended = _run(trial, chosen.run if isinstance(method, str) else lambda one: _drive(one, method))
    told = {"method": method if isinstance(method, str) else type(method).__name__, "seed": seed, "budget": budget}
    return _result(asked, trial, {**told, "prepare": list(names), "ended": ended})


def _method(method: str | AskTell) -> Method:
    if not isinstance(method, str):
        return Method("", "", budget=1000)
    if method not in METHODS:
        raise InputError(f'method: must be one of {", ".join(METHODS)}, got "{method}"')
    return METHODS[method]


def _check_limits(budget: int | None, seconds: float | None, seed: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise InputError(f"seed: must be a whole number of at least 0, got {seed!r}")
    if budget is not None and budget < 1:
        raise InputError(f"budget: must be at least 1, got {budget}")
    if seconds is not None and not seconds > 0:
        raise InputError(f"seconds: must be > 0, got {seconds}")


def _regrouped(oracle: Oracle, graph: Graph) -> Oracle:
    """The same question over other groups, those of this graph."""
    return Oracle(graph, oracle.cluster, oracle.costs, oracle.order, memory=oracle.memory)


def _own_start(question: Question, oracle: Oracle) -> Ints | None:
    """The placement that a scenario holds, where it keeps the groups together and splits nothing."""
    if isinstance(question, Oracle) or question.strategy.splits:
        return None
    try:
        placement = resolve_placement(oracle.graph, oracle.cluster, question.strategy.placement)
    except InputError:
        return None
    return np.array(placement, np.int64)


def _drive(trial: Trial, method: Any) -> None:
    while True:
        placement = method.ask()
        method.tell(placement, trial.score(placement))


def _run(trial: Trial, method: Callable[[Trial], None]) -> str:
    """Run it; why it ended."""
    try:
        method(trial)
        return "done"
    except SpentError:
        over_time = trial.seconds is not None and trial.wall_seconds >= trial.seconds
        return "time" if over_time else "budget"
    except KeyboardInterrupt:
        if not trial.points:
            raise
        return "interrupted"


def _result(asked: Oracle, trial: Trial, told: Mapping[str, Any]) -> Result:
    strategy, cost = _best(asked, trial)
    provenance = {
        **told,
        "evaluations": trial.evaluations,
        "cpu_seconds": trial.cpu_seconds,
        "seconds": trial.wall_seconds,
        "versions": _versions(),
    }
    objectives = {"step_time_s": cost.seconds, **trial.objectives}
    return Result(
        strategy, cost, objectives, tuple(trial.points), provenance, trial.details, obstacles(trial.oracle, cost)
    )


def _best(asked: Oracle, trial: Trial) -> tuple[Strategy, Cost]:
    """The best strategy and its whole cost: a walk does not tell peaks where nothing is limited."""
    if trial.best_strategy is not None:
        strategy, cost = trial.best_strategy
        return strategy, cost if cost.peaks else asked(strategy)
    if trial.best is None:
        raise InputError("graph: there is nothing to place")
    placement, cost = trial.best
    return Strategy(asked.named(placement), asked.order), cost if cost.peaks else trial.oracle(placement)


def _versions() -> dict[str, str]:
    found = {"simdev": __version__, "python": platform.python_version()}
    for name in MATTERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def compare(
    methods: Iterable[str],
    questions: Mapping[str, Question],
    budget: int | None = None,
    seed: int = 0,
    seconds: float | None = None,
    prepare: Sequence[str] | None = None,
) -> pd.DataFrame:
    """The table that papers print: every method on every question, a row each, in this order.

    Columns: question, method, step_ms, against_single (the best single device's step / this one's; NaN where no device
    can run everything), fits, peak_bytes (of the fullest device), placing_s (CPU seconds), evaluations, and further
    objectives of methods. Raises InputError.
    """
    import pandas as pd

    methods, rows = list(methods), []
    for name, question in questions.items():
        oracle = oracle_of(question)
        alone = _alone_ps(oracle)
        for method in methods:
            found = search(question, method, budget, seed, seconds, prepare)
            rows.append({"question": name, "method": method, **_row(found, alone)})
    return pd.DataFrame(rows)


def _alone_ps(oracle: Oracle) -> float:
    try:
        return float(search(oracle, "single").cost.step_ps)
    except InputError:
        return float("nan")


def _row(found: Result, alone_ps: float) -> dict[str, Any]:
    rest = {name: value for name, value in found.objectives.items() if name != "step_time_s"}
    return {
        "step_ms": found.cost.step_ps / 1e9,
        "against_single": alone_ps / found.cost.step_ps if found.cost.step_ps else float("nan"),
        "fits": found.cost.feasible,
        "peak_bytes": max(found.cost.peaks, default=0),
        "placing_s": found.provenance["cpu_seconds"],
        "evaluations": found.provenance["evaluations"],
        **rest,
    }
