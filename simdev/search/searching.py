"""``search`` runs one method on one question, ``compare`` several on several."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from math import nan
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import InputError
from ..oracle import Cost, Oracle, oracle_of
from ..scenario import Scenario
from ..strategy import Strategy, resolve_placement
from ..taskgraph import Ints
from ..version import __version__
from .methods import METHODS, Method
from .prepare import Adjusted
from .prepare import prepare as make_smaller
from .result import Result, obstacles
from .space import mean_ps
from .trial import REFUSED, Clock, SpentError, Trial, best_start

if TYPE_CHECKING:
    import pandas as pd

Question = Scenario | Oracle
COLUMNS = [
    "question",
    "method",
    "step_ms",
    "against_single",
    "fits",
    "peak_bytes",
    "placing_s",
    "evaluations",
    "reason",
]
ONE_DEVICE = ("pipedream", "maxload")  # modules of methods to which every op stands on one device
MATTERS = ("numpy", "numba", "scipy")  # packages whose version may change an answer


class AskTell(Protocol):
    """A method of one's own. Placements are device indices by group (``oracle.groups``)."""

    def ask(self) -> Ints:
        """The next placement to try."""

    def tell(self, placement: Ints, cost: Cost) -> None:
        """What the placement that was asked for costs."""


def oracle_for(question: Question) -> Oracle:
    """The oracle of what a search is asked about.

    Raises InputError where it is none, or under a fixed order.
    """
    if not isinstance(question, (Scenario, Oracle)):
        raise InputError(
            "question: must be a Scenario (load_scenario reads files) or an Oracle, got "
            f"{question!r}"
        )
    oracle = question if isinstance(question, Oracle) else oracle_of(question)
    if oracle.order.policy == "fixed":
        raise InputError(
            'order: "fixed" sequences belong to one placement; a search needs fifo, '
            "program or priority"
        )
    return oracle


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

    ``budget`` is how many placements may be evaluated (None: the method's own; unlimited where
    ``seconds`` are given), ``seconds`` how long it may take; at least one is evaluated. ``prepare``
    names preparations of the graph in place of the method's own. ``progress`` is called with the
    number of evaluations so far. The same seed and budget give the same answer; a limit in seconds,
    or Ctrl-C, ends with the best so far. A scenario's own placement is one of the starts of local
    search, whatever the preparation. Where what a method plans cannot be (between devices without a
    route), or is not ready in time, the best of these starts is the answer, beyond the limits.

    Raises InputError for a method or preparation that is not there, limits that are none, a group
    that can stand nowhere, where no placement can be, and for a malformed one that a method of
    one's own proposes.
    """
    began = Clock()
    _check(method, budget, seed, seconds, prepare)
    oracle, given = (
        oracle_for(question),
        None if isinstance(question, Oracle) else question.strategy,
    )
    return _search(oracle, given, method, budget, seed, seconds, prepare, progress, began)


def _search(
    asked: Oracle,
    given: Strategy | None,
    method: str | AskTell,
    budget: int | None,
    seed: int,
    seconds: float | None,
    prepare: Sequence[str] | None,
    progress: Callable[[int], object] | None,
    began: Clock,
) -> Result:
    """The same, of a question that is prepared, and the strategy that it holds; what is asked for
    was checked.
    """
    chosen = _method(method)
    names = chosen.prepare if prepare is None else tuple(prepare)
    if names and chosen.splits:
        raise InputError(
            f"prepare: {method} splits the ops of the graph as it is; it takes no preparation"
        )
    if budget is None and seconds is None:
        budget = chosen.budget
    if not asked.graph.ops:
        raise InputError("graph: there is nothing to place")
    _check_collectives(asked, chosen, method)
    grouped = make_smaller(asked.graph, names, mean_ps(asked.prepared.duration).tolist())
    # groups hold when judged
    together = grouped.original if isinstance(grouped, Adjusted) else grouped.colocated
    inner = asked if together == asked.graph else asked.on(together)
    trial = Trial(
        inner,
        grouped,
        budget,
        seconds,
        int(seed),
        _own_start(asked, given),
        progress,
        asked,
        began,
        given,
    )
    ended = _run(trial, chosen.run if isinstance(method, str) else lambda one: _drive(one, method))
    _fall_back(trial)
    told = {
        "method": method if isinstance(method, str) else type(method).__name__,
        "seed": int(seed),
    }
    told["budget"] = None if budget is None else int(budget)
    return _result(asked, trial, {**told, "prepare": list(names), "ended": ended})


def _method(method: str | AskTell) -> Method:
    return METHODS[method] if isinstance(method, str) else Method("", "", budget=1000)


def _check(method: object, budget: object, seed: object, seconds: object, prepare: object) -> None:
    """Raises InputError for what cannot be asked of any question."""
    if isinstance(method, str) and method not in METHODS:
        raise InputError(f'method: must be one of {", ".join(METHODS)}, got "{method}"')
    is_object = all(
        callable(getattr(method, name, None)) for name in ("ask", "tell")
    ) and not isinstance(method, type)
    if not isinstance(method, str) and not is_object:
        raise InputError(f"method: must be a name, or an object with ask and tell, got {method!r}")
    if isinstance(prepare, str):
        raise InputError(f'prepare: must be a list of names, got "{prepare}"')
    if not _is_whole(seed, 0):
        raise InputError(f"seed: must be a whole number of at least 0, got {seed!r}")
    if budget is not None and not _is_whole(budget, 1):
        raise InputError(f"budget: must be a whole number of at least 1, got {budget!r}")
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, Real) or not float(seconds) > 0
    ):
        raise InputError(f"seconds: must be a number > 0, got {seconds!r}")


def _is_whole(value: object, least: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def _check_collectives(asked: Oracle, chosen: Method, method: object) -> None:
    """Raises InputError for an op on several devices, where the method plans none, or splits what
    it reads.
    """
    ranked = [asked.graph.ops[i].name for i in asked.prepared.rings]
    if ranked and (chosen.splits or chosen.module in ONE_DEVICE):
        raise InputError(
            f'{method}: "{ranked[0]}" runs on several devices at once, which this method '
            "cannot plan"
        )


def _own_start(asked: Oracle, given: Strategy | None) -> Ints | None:
    """The placement that a scenario holds (by op), where it splits nothing."""
    if given is None or given.splits:
        return None
    try:
        return np.array(resolve_placement(asked.graph, asked.cluster, given.placement), np.int64)
    except InputError:
        return None


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


def _fall_back(trial: Trial) -> None:
    """Where there is no answer, no plan having been ready in time or none that can be: the best
    start, at any price.
    """
    if not trial.points:
        trial.details["planned"] = False
        trial.budget = trial.seconds = None
        best_start(trial)


def _result(asked: Oracle, trial: Trial, told: Mapping[str, Any]) -> Result:
    strategy, cost = _best(asked, trial)
    if trial.refused is not None:
        trial.details["impossible"] = {"placements": trial.refusals, "last": str(trial.refused)}
    provenance = {
        **told,
        "evaluations": trial.evaluations,
        "cpu_seconds": trial.cpu_seconds,
        "seconds": trial.wall_seconds,
        "versions": _versions(),
    }
    objectives = {"step_time_s": cost.seconds, **trial.objectives}
    return Result(
        strategy,
        cost,
        objectives,
        tuple(trial.points),
        provenance,
        trial.details,
        obstacles(trial.oracle, cost),
    )


def _best(asked: Oracle, trial: Trial) -> tuple[Strategy, Cost]:
    """The best strategy and its whole cost: a walk does not tell peaks where nothing is limited.

    Raises why there is none.
    """
    if trial.best_strategy is not None:
        strategy, cost = trial.best_strategy
        return strategy, cost if cost.peaks else asked(strategy)
    if trial.best is None:
        raise trial.refused or InputError("search: no placement was found that can be")
    placement, cost = trial.best
    return asked.strategy(placement), cost if cost.peaks else asked(placement)


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

    Columns: question, method, step_ms, against_single (the best single device's step / this one's;
    NaN where no device can run everything), fits, peak_bytes (of the fullest device), placing_s
    (CPU seconds; costs are known by then), evaluations, reason (why a method has no answer to a
    question: then the numbers are NaN), and further objectives of methods. Each question is
    prepared once, for all methods. Raises InputError for a method that is not there and for limits
    that are none.
    """
    import pandas as pd

    methods, rows = list(methods), list[dict[str, Any]]()
    for method in methods:
        _check(method, budget, seed, seconds, prepare)
    if not isinstance(questions, Mapping):
        raise InputError(f"questions: must be Scenarios or Oracles by name, got {questions!r}")
    for name, question in questions.items():
        rows += [
            {"question": name, **row}
            for row in _rows(question, methods, budget, seed, seconds, prepare)
        ]
    further = [name for row in rows for name in row if name not in COLUMNS]
    return pd.DataFrame(rows, columns=[*COLUMNS, *dict.fromkeys(further)])


def _rows(
    question: Question,
    methods: Sequence[str],
    budget: int | None,
    seed: int,
    seconds: float | None,
    prepare: Sequence[str] | None,
) -> Iterator[dict[str, Any]]:
    """The rows of one question."""
    try:
        asked = oracle_for(question)
        alone, given = _alone_ps(asked), None if isinstance(question, Oracle) else question.strategy
    except InputError as error:
        yield from ({"method": method, **_unanswered(error)} for method in methods)
        return
    for method in methods:
        try:
            found = _search(asked, given, method, budget, seed, seconds, prepare, None, Clock())
        except REFUSED as error:
            yield {"method": method, **_unanswered(error)}
        else:
            yield {"method": method, **_row(found, alone)}


def _alone_ps(oracle: Oracle) -> float:
    try:
        return float(search(oracle, "single").cost.step_ps)
    except REFUSED:
        return nan


def _unanswered(error: Exception) -> dict[str, Any]:
    empty = dict.fromkeys(("step_ms", "against_single", "peak_bytes", "placing_s"), nan)
    return {**empty, "fits": False, "evaluations": 0, "reason": str(error)}


def _row(found: Result, alone_ps: float) -> dict[str, Any]:
    rest = {name: value for name, value in found.objectives.items() if name != "step_time_s"}
    return {
        "step_ms": found.cost.step_ps / 1e9,
        "against_single": alone_ps / found.cost.step_ps if found.cost.step_ps else nan,
        "fits": found.cost.feasible,
        "peak_bytes": max(found.cost.peaks, default=0),
        "placing_s": found.provenance["cpu_seconds"],
        "evaluations": found.provenance["evaluations"],
        "reason": "",
        **rest,
    }
