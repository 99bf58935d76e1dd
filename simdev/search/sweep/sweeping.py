"""``sweep``: many scenarios, one table. Each point ends in a row of figures, or with the reason why
it has none.

The planners of a graph (``plan/graphs.py``) take their figures from ``row_of``, too. A figure is
made there and has its column in COLUMNS of ``simdev/report/results.py``; docs/how-to/sweeps.md
explains it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from ...costs import KNOWN, CostModel
from ...execution.scenario import Scenario, load_scenario, prepare, require_possible, scenario_of
from ...files import read_scenario
from ...files.reading import PathLike
from ...ground.errors import InputError, SimdevError, refuse
from ...ground.units import written
from ...lowering import Prepared
from ...nouns.draws import PERCENTS, Draws, draws_problems, percentiles
from ...nouns.graph import Graph
from ...report import Report, run
from ...report.measures.throughput import Throughput
from ...report.results import DRAWN, RATES
from .fields import Document, Grid, points
from .journal import Answer, Memo, Shared, bug, failed, journaled
from .point import (
    SINGLE,
    Row,
    Source,
    SweepPoint,
    as_simulate_says,
    engine_version,
    file_digest,
    rows_of,
)

if TYPE_CHECKING:
    import pandas as pd

OK, INFEASIBLE = "ok", "infeasible"


class _ChangedError(SimdevError):
    """A file has changed since its point was made."""


def answer(memo: Shared[Memo], point: SweepPoint) -> Answer:
    """Simulate a point's scenario. An error becomes the reason in the row.

    Raises InputError where this process runs another simdev than the sweep.
    """
    if point.version != engine_version():
        raise InputError(
            f"a worker runs simdev {engine_version()}, this sweep {point.version}: install the same"
        )
    try:
        scenario = _scenario(point, memo.value)
        prepared = _prepared(point, scenario, memo.value)
        return Answer(row_of(scenario, run(scenario, prepared, *point.draws)))
    except _ChangedError as error:
        return Answer(failed(str(error)), lasting=False)
    except SimdevError as error:
        return Answer(failed(_reason(point, error)))
    except (MemoryError, OSError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        return Answer(failed(reason), lasting=False)
    except Exception as error:
        return Answer(failed(bug(error)), lasting=False)


def problem_of(point: SweepPoint, memo: Memo) -> str | None:
    """The reason why a scenario is impossible, where it is known without lowering; None where
    nothing is wrong so far.
    """
    try:
        scenario = _scenario(point, memo)
        require_possible(scenario, _prepared(point, scenario, memo))
    except _ChangedError:
        return None
    except SimdevError as error:
        return _reason(point, error)
    except Exception:
        return None  # a fault of the machine, or a bug, is reported in the point's row
    return None


def _scenario(point: SweepPoint, memo: Memo) -> Scenario:
    """The scenario of a point. Its parts are shared with earlier points, so that costs and the like
    are computed once.
    """
    source, digests = point.scenario, point.digests
    if isinstance(source, Scenario):
        nouns: dict[str, Any] = {}
        for noun in ("graph", "cluster", "costs"):
            value = getattr(source, noun)
            nouns[noun] = memo.once((noun, digests[noun]), lambda value=value: value)  # type: ignore[misc]
        return replace(source, **nouns)

    def reading(part: str, value: Any, read: Callable[[Any], Any]) -> Any:
        # A model's name is a graph to one reader and sizes to another; both that and a strategy may
        # name a file.
        others = digests.get("config"), digests.get("table")
        name = part.partition("[")[0], digests[part], read.__name__, others
        return memo.once(name, lambda: read(_unchanged(value, digests[part])))

    parts = read_scenario(source, reading, try_placement=False)
    profiles = tuple(
        digest for part, digest in digests.items() if part.startswith(("profile", "devices"))
    )
    name = ("costs", parts.profiles is None, profiles, tuple(spec.kind for spec in parts.specs))
    return scenario_of(parts, costs=memo.once(name, lambda: CostModel(parts.profiles, parts.specs)))


def _prepared(point: SweepPoint, scenario: Scenario, memo: Memo) -> Prepared | None:
    """The prepared graph for lowering, shared with scenarios of other strategies, and in part with
    scenarios on other clusters.
    """
    if not isinstance(scenario.graph, Graph):
        return None
    # The memo keeps the object of this id alive, so no other object can get the id meanwhile.
    name = point.digests["graph"], id(scenario.costs), repr(scenario.memory)
    first = memo.once(("first", *name), lambda: prepare(scenario))
    cluster = scenario.cluster
    return memo.once(("prepared", *name, point.digests["cluster"]), lambda: first.on(cluster))


def _unchanged(value: Any, digest: str) -> Any:
    """The value. Where it names a file, the content must still have ``digest``, which is part of
    the answer's key. Raises _ChangedError.
    """
    is_file = isinstance(value, str) and not digest.startswith(("name:", "unreadable"))
    if is_file and file_digest(value) != digest:
        raise _ChangedError(f"{value}: changed during the sweep; run it again")
    return value


def _reason(point: SweepPoint, error: SimdevError) -> str:
    """The reason that ``simdev simulate`` gives for the scenario."""
    # load_scenario reports the problems of all parts; the sweep stops at the first part with one.
    if isinstance(error, InputError) and not isinstance(point.scenario, Scenario):
        try:
            load_scenario(point.scenario)
        except SimdevError as whole:
            return str(whole)
    return str(error)


def row_of(
    scenario: Scenario, report: Report, throughput: Throughput | None = None
) -> dict[str, Any]:
    """The figures of a report, under the names of ``simdev simulate --json`` where that has them
    too.

    For a large model ``ops`` counts simulated ops, where one device may represent several identical
    ones. ``throughput``, where given, replaces the report's own.
    """
    graph, training, working = scenario.graph, report.training, report.working
    devices, steady = report.devices, report.steady
    throughput = throughput or report.throughput
    rates = throughput.to_json() if throughput else {}
    over = [device.memory for device in devices if device.memory.overflow is not None]
    return {
        "status": OK if report.feasible else INFEASIBLE,
        "reason": "; ".join(map(_excess, over)) or None,
        "graph_name": graph.name,
        "cluster_name": scenario.cluster.name,
        "ops": len(graph.ops) if isinstance(graph, Graph) else sum(d.ops for d in devices),
        "devices": training.large.parallelism.devices if training else len(working),
        "step_time_s": report.seconds,
        "step_time_ps": report.step_ps,
        **_drawn(report.draws),
        "first_step_s": steady and steady.first_ps / 1e12,
        "trace_s": steady and report.trace_ps / 1e12,
        "steps": steady and steady.steps,
        "cycle": steady and steady.cycle,
        "feasible": report.feasible,
        "memory_excess_bytes": report.memory_excess,
        "peak_bytes": max((device.memory.peak for device in devices), default=0),
        "utilization": sum(d.utilization for d in working) / max(len(working), 1),
        "bubble": report.bubble,
        "exposed_communication": report.exposed,
        "transfers": report.transfer_count,
        "transfer_bytes": report.transfer_bytes,
        **{f"blame_{blame}_s": ps / 1e12 for blame, ps in report.blame.items()},
        "cost_estimated": math.fsum(
            share for rung, share in report.costs.items() if rung not in KNOWN
        ),
        "cost_rel_err": report.cost_rel_err,
        "mfu": training and training.mfu,
        **{name: rates.get(name) for name in RATES},
        "goodput": report.goodput and report.goodput.runs.mean,
        "steps_per_day": report.goodput and report.goodput.steps_per_day,
        "engine": report.engine,
    }


def _drawn(draws: Draws | None) -> dict[str, Any]:
    """Percentiles of the step time, and the draws themselves, which the journal keeps."""
    if draws is None:
        return {}
    parts = zip(PERCENTS, percentiles(draws.step_ps), strict=True)
    return {f"step_p{part}_s": ps / 1e12 for part, ps in parts} | {DRAWN: draws.step_ps.tolist()}


def _excess(memory: Any) -> str:
    return f"{memory.device}: {memory.peak - memory.capacity} bytes over its {memory.capacity}"


# Impossible values of a sweep, refused before the first scenario is simulated.


def impossible(
    rows: Sequence[Row],
    points: Sequence[Document],
    plain: Callable[[], Sequence[Row]],
    memo: Memo,
) -> Iterator[str]:
    """A line for each value that makes every scenario of a sweep impossible, whatever else is set:
    a field that does not exist, a wrong type, a number of devices that the strategy cannot use.

    ``rows`` are every scenario at every one of the ``points``, ``plain()`` every scenario without
    settings. A fault of a scenario itself is reported in its rows, and so is a combination of
    values that do not go together.
    """
    problems: dict[str, str | None] = {}

    def problem(row: Row) -> str | None:
        if row.point is None:
            return row.problem
        if row.point.key not in problems:
            problems[row.point.key] = problem_of(row.point, memo)
        return problems[row.point.key]

    carriers: dict[tuple[str, str], list[int]] = {}
    for number, settings in enumerate(points):
        for path, value in settings.items():
            carriers.setdefault((path, repr(value)), []).append(number)
    plainly: list[str | None] = []
    scenarios = range(len(rows) // len(points))
    for (path, _), numbers in carriers.items():
        with_it = [(s, rows[s * len(points) + n]) for n, s in product(numbers, scenarios)]
        if any(problem(row) is None for _, row in with_it):
            continue
        plainly = plainly or [problem(row) for row in plain()]
        wrong = [row for scenario, row in with_it if problem(row) != plainly[scenario]]
        if wrong:
            reason = as_simulate_says(str(problem(wrong[0]))).replace("\n", "; ")
            value = written(wrong[0].settings[path])
            yield f"{wrong[0].label}: {path}={value}: {reason.removeprefix(f'{path}: ')}"


def sweep(
    scenarios: Source | Iterable[Source],
    grid: Grid | None = None,
    n_jobs: int | None = None,
    journal: PathLike | None = None,
    progress: bool | None = None,
    draws: int = 0,
    seed: int = 0,
) -> pd.DataFrame:
    """Simulate every scenario at every point of a grid: a DataFrame of one row each, in this order.

    Parameters
    ----------
    scenarios
        Paths, objects of the same shape (their paths are relative to the working directory) or
        Scenarios.
    grid
        Values by field, ``{"cluster.bandwidth": ["1 GB/s", "2 GB/s"], "graph.batch": [16, 32]}``:
        every combination. A list of such grids is taken one after another.
    n_jobs
        The number of scenarios at once, -1 for all cores (needs joblib). None: as an enclosing
        ``joblib.parallel_config`` says, which may name a cluster (docs/how-to/sweeps.md), or 1.
    journal
        A file to which every finished row is appended at once. A sweep does not simulate the rows
        in it again, as long as neither the scenario, nor a file it names, nor simdev has changed.
    progress
        Whether to show a bar on stderr, from two seconds on; None: where stderr is a terminal.
    draws, seed
        How many times the costs of each scenario are drawn from their expected errors (0: not at
        all), with common random numbers for all scenarios, to show how certain their order is.

    Notes
    -----
    docs/how-to/sweeps.md explains the columns. A scenario that does not fit has the status
    "infeasible" and a step time all the same; one that cannot be simulated has the status "failed".
    Both have a reason, and neither stops the sweep. A failure that depends on the machine (out of
    memory, a dead worker) is not kept in the journal. Raises InputError for a malformed grid or a
    value that makes every scenario impossible (``impossible``), before anything is simulated or
    written; and for a journal that cannot be written or that another sweep holds.
    """
    # pandas takes half a second to import: a wrong grid is refused before.
    refuse(draws_problems(draws or 1, seed))
    each, memo = points(grid), Memo()
    if any(each) and not isinstance(scenarios, SINGLE):
        # Scenarios are read twice, and a caller's iterator may reuse one object for all of them.
        scenarios = [deepcopy(s) if isinstance(s, Mapping) else s for s in scenarios]
    rows = list(rows_of(scenarios, each))
    if any(each):
        refuse(impossible(rows, each, lambda: list(rows_of(scenarios, [{}])), memo))
    from .frame import frame

    rows = [replace(row, point=row.point and row.point.drawn(draws, seed)) for row in rows]
    distinct = {row.point.key: row.point for row in rows if row.point is not None}
    figures: dict[str, Mapping[str, Any]] = {}
    with journaled(
        "sweep", partial(answer, Shared(memo)), n_jobs, engine_version(), journal, progress,
        distinct.keys(), total=len(distinct), unit="scenario",
    ) as loop:  # fmt: skip
        for key, row in loop.rows(distinct):
            figures[key] = row
            loop.done(len(figures))
    return frame(rows, figures)
