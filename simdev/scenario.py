"""Scenario, one runnable question, and ``run``, which answers it."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from .cluster import Cluster
from .errors import InputError
from .graph import Graph
from .memory import MemoryModel
from .profile import KNOWN, RUNGS, CostMiss, CostModel, OpCost
from .strategy import Origin, Strategy, Sync
from .units import picoseconds

if TYPE_CHECKING:
    from .analysis import Report, SplitCost
    from .analysis.training import TrainingReport
    from .lowering import Prepared
    from .models.large import Transformer
    from .profile import DeviceSpec
    from .strategy.parallelism import Parallelism
    from .taskgraph import TaskGraph
    from .trace import Trace


@dataclass(frozen=True, slots=True)
class Scenario:
    """A graph on a cluster, what its ops cost, how it is spread, and the engine to ask ("auto": the fastest here).

    ``memory`` is how memory is counted; it never changes timing.
    """

    graph: Graph
    cluster: Cluster
    costs: CostModel
    strategy: Strategy
    engine: str = "auto"
    memory: MemoryModel = MemoryModel()

    def __post_init__(self) -> None:
        from .engine import ENGINES

        if self.engine not in ("auto", *ENGINES):
            choice = ", ".join(("auto", *ENGINES))
            raise InputError(f'engine: "{self.engine}" is not available in this version of simdev; there are {choice}')


@dataclass(frozen=True, slots=True)
class Outcome:
    """The trace of a scenario with where its op times come from.

    ``rungs`` is the share of the op time by the rung of the cost ladder that told it, ``misses`` what had to be
    estimated (the longest first), ``rel_err`` the expected relative error of an op's time, weighted by time (None: not
    known). ``splits`` tells what splitting each op costs. ``synchronised`` counts the gradients that a policy
    synchronises (None: there is none): the trace then holds several steps.
    """

    trace: Trace
    rungs: Mapping[str, float]
    misses: tuple[CostMiss, ...] = ()
    rel_err: float | None = 0.0
    splits: tuple[SplitCost, ...] = ()
    synchronised: int | None = None


def load_scenario(path: str | os.PathLike[str] | Mapping[str, Any]) -> Scenario:
    """The scenario of a file (or of an object of the same shape).

    Raises InputError with every problem of every file that it names.
    """
    from .files import read_scenario
    from .files.training import has_pipeline

    try:
        parts = read_scenario(path)
    except InputError as error:
        if has_pipeline(path):
            told = "strategy.pipeline: a large model's step is for `simdev simulate` (in Python load_training)"
            raise InputError(told, error.file) from None
        raise
    try:
        costs = CostModel(parts.profiles, parts.specs)
        return Scenario(parts.graph, parts.cluster, costs, parts.strategy, parts.engine, parts.memory)
    except InputError as error:
        file = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        raise InputError([f"options.{problem}" for problem in error.problems], file) from None


def prepare(scenario: Scenario) -> Prepared:
    """What lowering needs whatever the strategy: scenarios that differ in nothing else can share it."""
    from .lowering import Prepared

    return Prepared(scenario.graph, scenario.cluster, scenario.costs, scenario.memory)


def execute(scenario: Scenario, prepared: Prepared | None = None) -> Outcome:
    """Lower and simulate, with what ``prepare`` made where it is at hand.

    Raises InputError, MissingCostError, DeadlockError.
    """
    from .engine import simulate
    from .lowering import lower_step
    from .steps import simulate_steps

    prepared, strategy = prepare(scenario) if prepared is None else prepared, scenario.strategy
    step = lower_step(prepared, strategy)
    if not isinstance(strategy.sync, Sync):
        return outcome_of(prepared, strategy, simulate(step.task_graph, scenario.engine))
    outcome = outcome_of(prepared, strategy, simulate_steps(step, scenario.engine, strategy.sync), step.task_graph)
    return replace(outcome, synchronised=step.synchronised)


def outcome_of(prepared: Prepared, strategy: Strategy, trace: Trace, step: TaskGraph | None = None) -> Outcome:
    """A trace of a strategy, with where its op times come from; ``step`` is one step where the trace holds several."""
    from .lowering import split

    own, placed, origins = split(prepared, strategy)
    one = trace.task_graph if step is None else step
    costs = op_costs(own, one.tasks.source[: len(own.graph.ops)].tolist())  # a graph's ops are its first tasks
    splits = _split_costs(prepared, own, placed, origins, one) if origins else ()
    return Outcome(trace, rung_shares(costs), cost_misses(own, costs), expected_error(costs), splits)


def _split_costs(
    prepared: Prepared, sharded: Prepared, placed: Strategy, origins: Mapping[str, Origin], step: TaskGraph
) -> tuple[SplitCost, ...]:
    """What splitting costs, an op's unsplit time being that on the device of its first part."""
    from .analysis import split_costs

    graph, cluster = prepared.graph, prepared.cluster
    whole: dict[str, int] = {}
    for name, origin in origins.items():
        if origin.op not in whole:
            cost = prepared.cost(graph.index[origin.op], cluster.index[placed.placement[name]])
            if cost is not None:
                whole[origin.op] = picoseconds(cost.seconds)
    return split_costs(step, {op.name: op.kind for op in graph.ops}, origins, whole)


class Alike(NamedTuple):
    """Ops of one kind that cost the same on one kind of device: the first of them, its device, and how many."""

    op: int
    device: int
    cost: OpCost
    number: int


def op_costs(prepared: Prepared, devices: Sequence[int]) -> tuple[Alike, ...]:
    """What the ops cost on their devices (by op), in the order of the first; ops of unknown cost are left out."""
    ops, kinds = prepared.graph.ops, [device.kind for device in prepared.cluster.devices]
    first: dict[tuple[str, str, int], tuple[int, int, OpCost]] = {}
    counts: Counter[tuple[str, str, int]] = Counter()
    for op, device in enumerate(devices):
        cost = prepared.cost(op, device)
        if cost is not None:
            alike = ops[op].kind, kinds[device], id(cost)  # equal costs are one object
            first.setdefault(alike, (op, device, cost))
            counts[alike] += 1
    return tuple(Alike(*first[alike], count) for alike, count in counts.items())


def rung_shares(costs: Iterable[Alike]) -> dict[str, float]:
    """The share of the summed op time by rung, for the rungs that told any; empty where no op takes time."""
    totals = dict.fromkeys(RUNGS, Fraction(0))
    for _, _, cost, number in costs:
        totals[cost.rung] += cost.seconds * number
    total = sum(totals.values())
    return {rung: float(seconds / total) for rung, seconds in totals.items() if seconds}


def expected_error(costs: Iterable[Alike]) -> float | None:
    """Mean of the expected relative errors, weighted by time; None where an estimate tells none.

    Given and measured times that tell none count as exact. It bounds the expected error of the summed op time, which it
    equals where all errors go the same way.
    """
    timed = [(float(cost.seconds * number), cost) for _, _, cost, number in costs if cost.seconds]
    if any(cost.rel_err is None and cost.rung not in KNOWN for _, cost in timed):
        return None
    total = math.fsum(seconds for seconds, _ in timed)
    return math.fsum(seconds * (cost.rel_err or 0.0) for seconds, cost in timed) / total if timed else 0.0


def cost_misses(prepared: Prepared, costs: Iterable[Alike]) -> tuple[CostMiss, ...]:
    """What had to be estimated, the longest in sum first; ops of one kind with one cost are told together."""
    misses = [_miss(prepared, alike) for alike in costs if alike.cost.rung not in KNOWN]
    return tuple(sorted(misses, key=lambda miss: -miss.seconds))


def _miss(prepared: Prepared, alike: Alike) -> CostMiss:
    first, device, cost, number = alike
    op, kind = prepared.graph.ops[first], prepared.cluster.devices[device].kind
    return CostMiss(op.name, op.kind, kind, number, float(cost.seconds * number), cost.rung, cost.rel_err, cost.basis)


def run(scenario: Scenario, prepared: Prepared | None = None) -> Report:
    """The answer: lower, simulate, analyze; see ``execute``. Raises InputError, MissingCostError, DeadlockError.

    A step that does not fit is an answer and no error (``Report.feasible``).
    """
    from .analysis import analyze

    outcome = execute(scenario, prepared)
    known = outcome.rungs, outcome.misses, outcome.rel_err
    return analyze(outcome.trace, *known, scenario.memory, outcome.splits, outcome.synchronised)


def fingerprint(value: Any) -> str:
    """A hash of all that a scenario, or a part of one, says: the same however its files write it."""
    found = hashlib.sha256()
    _feed(lambda text: found.update(text.encode()), value)
    return found.hexdigest()[:32]


def _feed(write: Callable[[str], None], value: Any) -> None:
    if is_dataclass(value):
        write(f"{type(value).__name__}(")
        for one in fields(value):
            _feed(write, getattr(value, one.name))
        write(")")
    elif isinstance(value, Mapping):
        write("{")
        for key in sorted(value, key=repr):
            write(f"{key!r}:")
            _feed(write, value[key])
        write("}")
    elif isinstance(value, (list, tuple)):
        write("[")
        for item in value:
            _feed(write, item)
        write("]")
    else:
        write(f"{value!r},")


@dataclass(frozen=True, slots=True)
class TrainingScenario:
    """A large model's step on a cluster: its sizes, how it is spread, and the datasheets of the kinds of device.

    With ``symmetry`` one device stands for those that are alike (see docs/large-models.md).
    """

    model: Transformer
    cluster: Cluster
    specs: tuple[DeviceSpec, ...]
    parallelism: Parallelism
    engine: str = "auto"
    symmetry: bool = True


def load_training(path: str | os.PathLike[str] | Mapping[str, Any]) -> TrainingScenario:
    """The scenario of a file whose strategy is a pipeline. Raises InputError with every problem."""
    from .files.training import read_training

    parts = read_training(path)
    return TrainingScenario(parts.model, parts.cluster, parts.specs, parts.parallelism, parts.engine, parts.symmetry)


def run_training(scenario: TrainingScenario) -> TrainingReport:
    """The answer: lower, simulate, analyze. Raises InputError, DeadlockError. A step that does not fit is an answer."""
    from .analysis.training import analyze_training
    from .engine import simulate
    from .files import collective_model
    from .lowering.hybrid import lower_hybrid

    specs = {spec.kind: spec for spec in scenario.specs}
    model = collective_model(scenario.cluster)
    task_graph, plan = lower_hybrid(scenario.model, scenario.parallelism, model, specs, scenario.symmetry)
    return analyze_training(simulate(task_graph, scenario.engine), plan, specs)
