"""A Scenario is one runnable question; ``execute`` simulates it and returns an Outcome.

Commands, sweeps, the oracle and notebooks start here: ``load_scenario`` reads a scenario,
``execute`` simulates it, ``report.analyze`` explains the outcome. A new field of ``options`` needs
a field of Scenario, its name in OPTIONS, and a key of ``_OptionsShape`` in ``files/scenario.py``. A
new engine is named in ``engine.ENGINES`` and in ``files/scenario.py``.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..costs import CostMiss, CostModel
from ..ground.errors import InputError, refuse
from ..ground.units import Number, is_count, parse_price, written
from ..lowering import LoweredStep, Prepared, iterated, lower_step, split
from ..lowering.expected import ExpectedErrors, errors_of_graph, errors_of_large
from ..lowering.origins import (
    HostOrigins,
    cost_misses,
    expected_error,
    host_origins,
    op_costs,
    rung_shares,
)
from ..lowering.prepare import UNKNOWN
from ..lowering.symmetry import Expanded, Symmetry
from ..lowering.symmetry.quotient import Quotient, quotient_of
from ..nouns.cluster import Cluster
from ..nouns.disturbances import Disturbances
from ..nouns.draws import Draws
from ..nouns.failures import Failures
from ..nouns.graph import Graph
from ..nouns.memory import MemoryModel
from ..nouns.models.large import Transformer, shard_of
from ..nouns.models.large.roles import LargeStep
from ..nouns.scale import LIMIT, parse_limit, scale_of, scale_of_devices, scale_of_large
from ..nouns.schedules import Schedule
from ..nouns.strategy import Origin, Parallelism, Strategy, resolve_placement
from ..nouns.taskgraph import TaskGraph
from ..nouns.trace import Trace
from .disturbances import noise, with_stalls
from .factors import with_factors
from .period import STEPS, follow_one_another, simulate_lowered

if TYPE_CHECKING:
    from ..files import ScenarioFiles

OPTIONS = ("engine", "memory", "symmetry", "steps", "limit", "samples", "tokens", "price")
"""Fields of a scenario that are under ``options`` in its file."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A model, a cluster, the costs of ops, a strategy, and options of the simulation.

    Raises InputError.

    - ``graph``: a Graph of ops; or a large model given only by its sizes (a Transformer), whose
      strategy must be a pipeline.
    - ``costs``: profiles and datasheets; the shipped ones for the cluster's kinds of device are
      added. For a large model, profiles give the ops that its kernels resemble; without profiles
      (``CostModel()``) the measured rows shipped for its kinds of device count.
    - ``engine``: "auto" is the fastest that is installed. ``memory``: how the memory of a graph is
      counted; never changes timing.
    - ``symmetry``: whether one device is simulated for all that behave as it does
      (docs/explanation/symmetry.md).
    - ``steps``: "once", or "repeated": one step after another.
    - ``limit``: a simulation whose estimated run time is longer is refused before lowering:
      seconds, a text with a unit, or "none".
    - ``samples`` in a step of a graph (None: read from the graph's inputs, where possible), and
      ``tokens`` in it (None: unknown).
    - ``price`` of a GPU's hour in dollars, a number or like "$2.5"; None: no prices are reported.
    - ``disturbances`` of the step (None: every task takes exactly its cost).
    - ``failures`` of a long run of such steps (None: no long run is simulated).
    """

    graph: Graph | Transformer
    cluster: Cluster
    costs: CostModel
    strategy: Strategy
    engine: str = "auto"
    memory: MemoryModel = MemoryModel()
    symmetry: bool = True
    steps: str = STEPS[0]
    limit: Number = LIMIT
    samples: int | None = None
    tokens: int | None = None
    price: Number | None = None
    disturbances: Disturbances | None = None
    failures: Failures | None = None

    def __post_init__(self) -> None:
        from ..files.device import datasheets
        from ..files.profile import shipped_rows

        refuse(self._problems())
        kinds = dict.fromkeys(device.kind for device in self.cluster.devices)
        specs = datasheets(self.costs.specs, kinds, self.costs.profiles)
        measured_as = {spec.kind: spec.measured_as for spec in specs if spec.measured_as}
        sources = dict.fromkeys(measured_as.get(kind, kind) for kind in kinds)
        rows = shipped_rows(sources) if isinstance(self.graph, Transformer) else ()
        measured = datasheets((), (), rows)
        object.__setattr__(self, "costs", self.costs.completed(specs, rows, measured))

    @property
    def is_symmetric(self) -> bool:
        """Whether one device may be simulated in place of all that behave as it does."""
        return self.symmetry and self.disturbances is None

    def _problems(self) -> Iterator[str]:
        from .engine import ENGINES

        if self.engine not in ("auto", *ENGINES):
            choice = ", ".join(("auto", *ENGINES))
            yield (
                f'engine: "{self.engine}" is not available in this version of simdev; '
                f"there are {choice}"
            )
        price = 0 if self.price is None else self.price
        for name, parse, value in (
            ("limit", parse_limit, self.limit),
            ("price", parse_price, price),
        ):
            try:
                parse(value)
            except ValueError as error:
                yield f"{name}: {error}"
        for name in ("samples", "tokens"):
            count = getattr(self, name)
            if count is not None and not (is_count(count) and count):
                yield f"{name}: must be a whole number from 1 on, got {written(count)}"
        if self.disturbances is not None:
            problems = self.disturbances.problems(self.cluster)
            yield from (f"disturbances.{problem}" for problem in problems)
        if self.steps not in STEPS:
            yield f'steps: must be one of {", ".join(STEPS)}, got "{self.steps}"'
        yield from (
            self._large_problems()
            if isinstance(self.graph, Transformer)
            else self._graph_problems()
        )

    def _graph_problems(self) -> Iterator[str]:
        pipeline = self.strategy.pipeline
        for name in () if pipeline is None else pipeline.of_large_models():
            yield (
                f"strategy.pipeline.{name}: goes with a large model by its name; "
                f"{self.graph.name or 'this'} is a graph"
            )

    def _large_problems(self) -> Iterator[str]:
        """Problems of a large model: it has no ops, so options about single ops are refused."""
        name = self.graph.name
        if self.strategy.pipeline is None:
            yield f"strategy: {name} is a large model by its sizes; it needs a pipeline"
        for beside in ("stages", "ranks"):
            if self.strategy.pipeline is not None and getattr(self.strategy.pipeline, beside):
                reason = f"goes with a graph of ops; {name} is a large model by its sizes"
                yield f"strategy.pipeline.{beside}: {reason}"
        if self.steps != STEPS[0]:
            yield f"steps: {name} is a large model by its sizes; its step is simulated once"
        for count in ("samples", "tokens"):
            if getattr(self, count) is not None:
                yield f"{count}: the pipeline of {name} tells them"
        if self.costs.strict:
            yield f"costs: some of the layers of {name} are estimated"
        if self.memory != MemoryModel():
            yield f"memory: that of {name} is counted tensor by tensor"


class Splitting(NamedTuple):
    """The data from which a report works out how much splitting ops costs.

    ``task_graph`` is that of one step (or microbatch), ``kinds`` the kind of each op of the unsplit
    graph by name, ``origins`` the origin of each shard by name, and ``whole_ps`` the time of each
    split op, had it stayed whole, in ps. ``symmetry`` is set where some shards represent others.
    """

    task_graph: TaskGraph
    kinds: Mapping[str, str]
    origins: Mapping[str, Origin]
    whole_ps: Mapping[str, int]
    symmetry: Symmetry | None = None


class Stage(NamedTuple):
    """A stage of a pipeline over a graph: its device, its first and last forward op in program
    order, and how many ops it has.
    """

    device: str
    first: str
    last: str
    ops: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The input of a report: a trace, with the sources of its op times.

    A trace alone makes an outcome: ``Outcome(trace)``. ``rungs`` is the share of the op time by
    the rung of the cost ladder that gave it, ``misses`` the ops whose times were estimated (the
    longest first), ``rel_err`` the expected relative error of an op's time, weighted by time (None:
    not known). ``memory`` is how memory was counted. ``splitting`` is set where ops were split.
    ``synchronised`` is the number of gradients that a policy synchronises (None: no policy).
    ``large`` describes the tasks of a large model's step; ``schedule`` is the pipeline schedule of
    a trace made from stage times alone. ``strategy`` is the scenario's; ``stages`` are those of a
    pipeline over a graph; ``hosts`` tells where the times of hosts come from. ``symmetry`` tells
    which devices each device of the trace represents, or why all were simulated although some
    looked alike (None: no two did). ``scenario`` is the simulated question; ``draws`` is set where
    the errors of its costs were drawn.
    """

    trace: Trace
    rungs: Mapping[str, float] = field(default_factory=dict)
    misses: tuple[CostMiss, ...] = ()
    rel_err: float | None = 0.0
    memory: MemoryModel = MemoryModel()
    splitting: Splitting | None = None
    synchronised: int | None = None
    large: LargeStep | None = None
    schedule: Schedule | None = None
    strategy: Strategy | None = None
    stages: tuple[Stage, ...] = ()
    hosts: HostOrigins | None = None
    symmetry: Symmetry | Expanded | None = None
    scenario: Scenario | None = None
    draws: Draws | None = None


def load_scenario(
    path: str | os.PathLike[str] | Mapping[str, Any], limit: Number | None = None
) -> Scenario:
    """Read a scenario from a file, from an example by its name (``simdev examples`` lists them), or
    from a mapping with the keys of such a file. ``limit``, where given, replaces the file's limit.

    Raises InputError with every problem of the scenario and of every file that it refers to.
    """
    from ..files import read_scenario

    file = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    return scenario_of(read_scenario(path, limit=limit), file)


def scenario_of(
    parts: ScenarioFiles, file: str | None = None, costs: CostModel | None = None
) -> Scenario:
    """The scenario made of the parts read from a file. ``costs`` is the CostModel of these parts,
    for callers that have built it already. Raises InputError.
    """
    costs = CostModel(parts.profiles, parts.specs) if costs is None else costs
    try:
        return Scenario(parts.graph, parts.cluster, costs, parts.strategy, **parts.options)
    except InputError as error:
        problems = (
            f"options.{problem}" if problem.partition(":")[0] in OPTIONS else problem
            for problem in error.problems
        )
        raise InputError(problems, file) from None


def graph_of(scenario: Scenario) -> Graph:
    """The graph of a scenario, for callers that deal with single ops.

    Raises InputError for a large model, which has no ops.
    """
    if isinstance(scenario.graph, Transformer):
        name = scenario.graph.name
        raise InputError(
            f"graph: {name} is a large model by its sizes: it has no ops to place, fit or ask about"
        )
    return scenario.graph


def of_every_device(scenario: Scenario) -> Scenario:
    """The scenario with every device simulated, none in place of others.

    Callers need this where they match the tasks of the trace with those of another source: the
    checker, saved runs, measured traces. The scenario of a large model is returned unchanged.
    """
    return replace(scenario, symmetry=False) if isinstance(scenario.graph, Graph) else scenario


def prepare(scenario: Scenario) -> Prepared:
    """The part of lowering that does not depend on the strategy: scenarios that differ only in
    their strategy can share it.

    Raises InputError for a large model, whose lowering has no such part.
    """
    return Prepared(graph_of(scenario), scenario.cluster, scenario.costs, scenario.memory)


def require_possible(scenario: Scenario, prepared: Prepared | None = None) -> None:
    """Raise InputError for a strategy that does not fit the graph and the cluster, without
    simulating it: degrees that do not divide, a wrong number of devices, unknown names.
    ``execute`` raises the same errors.
    """
    if isinstance(scenario.graph, Transformer):
        from ..lowering.hybrid import even_layers
        from ..lowering.hybrid.durations import rank_grid
        from ..lowering.pipeline import schedule_of

        pipeline = scenario.strategy.pipeline
        assert pipeline is not None
        with _of_the_pipeline():
            shard_of(scenario.graph, pipeline)
            rank_grid(scenario.cluster, pipeline)
            stages = schedule_of(pipeline, large=True).stages
            if not pipeline.stage_layers:
                even_layers(scenario.graph.layers, stages)
        return
    prepared, strategy = prepare(scenario) if prepared is None else prepared, scenario.strategy
    if strategy.pipeline is None:
        sharded, placed, _ = split(prepared, strategy)
        resolve_placement(sharded.graph, sharded.cluster, placed.placement)
    else:
        lower_step(prepared, strategy)


def execute(scenario: Scenario, prepared: Prepared | None = None) -> Outcome:
    """Lower and simulate a scenario.

    ``prepared`` is the result of ``prepare`` for this scenario, to save time. Where the scenario
    allows symmetry, only some of the devices that behave equally are simulated. Raises InputError,
    MissingCostError, DeadlockError.
    """
    question = lowered(scenario, prepared)
    return question.outcome(question.trace())


@dataclass(frozen=True, eq=False)
class Lowered:
    """A scenario lowered to one step, to be simulated once or, with other durations, many times.

    ``prepared`` and ``strategy`` were lowered. Where ``quotient`` is a Quotient, they are those of
    the few devices that represent all; where it is Expanded, it tells why all devices were lowered
    although some look alike. ``whole`` is the graph on all devices. A large model has ``large``,
    and neither ``prepared`` nor ``whole``.
    """

    scenario: Scenario
    strategy: Strategy
    step: LoweredStep
    prepared: Prepared | None = None
    whole: Prepared | None = None
    quotient: Quotient | Expanded | None = None
    large: LargeStep | None = None

    def trace(
        self, graph_of: Callable[[int], TaskGraph] | None = None, engine: str | None = None
    ) -> Trace:
        """The trace of the step, or of steps that follow one another; ``graph_of`` as in
        ``simulate_lowered``. Raises InputError, DeadlockError.
        """
        there = self.step, self.strategy, engine or self.scenario.engine, self.scenario.steps
        if graph_of is None and self.scenario.disturbances is not None:
            return simulate_lowered(*there, self._disturbed)
        return simulate_lowered(*there, graph_of)

    def _disturbed(self, rounds: int) -> TaskGraph:
        """The task graph of ``rounds`` rounds, with the noise and the pauses of draw 0."""
        graph, disturbances = iterated(self.step, rounds), self.scenario.disturbances
        assert disturbances is not None
        return with_stalls(with_factors(graph, noise(disturbances)(graph)(0)), disturbances, 0)

    @cached_property
    def expected_errors(self) -> Callable[[TaskGraph], ExpectedErrors]:
        """A function from a task graph of one or more steps to its expected errors; results are
        remembered, because all draws use the same.
        """
        if self.large is not None:
            return cache(partial(errors_of_large, large=self.large))
        assert self.prepared is not None
        return cache(partial(errors_of_graph, split(self.prepared, self.strategy)[0]))

    def outcome(self, trace: Trace) -> Outcome:
        """The outcome of ``trace``, which must be a trace of this step."""
        if self.large is not None:
            sources = self.large.rungs, (), self.large.rel_err
            return Outcome(trace, *sources, large=self.large, scenario=self.scenario)
        assert self.prepared is not None
        known = self.prepared, self.strategy, trace, self.step
        if isinstance(self.quotient, Quotient):
            outcome = outcome_of(*known, self.quotient.symmetry, self.whole)
            return replace(outcome, strategy=self.scenario.strategy, scenario=self.scenario)
        return replace(outcome_of(*known), symmetry=self.quotient, scenario=self.scenario)


def lowered(scenario: Scenario, prepared: Prepared | None = None) -> Lowered:
    """Lower a scenario to one step; ``prepared`` is the result of ``prepare``, to save time.

    Raises InputError, MissingCostError.
    """
    if isinstance(scenario.graph, Transformer):
        return _large(scenario)
    limit, repeats = parse_limit(scenario.limit), scenario.steps == "repeated"
    scale_of_devices(scenario.cluster).require(limit)
    whole, strategy = prepare(scenario) if prepared is None else prepared, scenario.strategy
    # Noise makes equal devices differ, so ``is_symmetric`` excludes it.
    quotient = quotient_of(whole, strategy) if scenario.is_symmetric else None
    there = whole, strategy
    if isinstance(quotient, Quotient):
        there = quotient.prepared, quotient.strategy
    else:
        scale_of(whole.graph, scenario.cluster, strategy, repeats).require(limit)
    step = lower_step(*there, follow_one_another(there[1], scenario.steps))
    return Lowered(scenario, there[1], step, there[0], whole, quotient)


def _large(scenario: Scenario) -> Lowered:
    """Lower the step of a large model; problems of its pipeline name the key in the strategy."""
    from ..costs.collectives import collective_model
    from ..lowering.hybrid import lower_hybrid

    model, pipeline = scenario.graph, scenario.strategy.pipeline
    assert isinstance(model, Transformer)
    assert pipeline is not None
    with _of_the_pipeline():
        scale = scale_of_large(model, pipeline, scenario.cluster, scenario.is_symmetric)
        scale.require(parse_limit(scenario.limit))
        collectives = collective_model(scenario.cluster)
        options = scenario.costs, scenario.is_symmetric
        task_graph, large = lower_hybrid(model, pipeline, collectives, *options)
    return Lowered(scenario, scenario.strategy, LoweredStep(task_graph), large=large)


@contextmanager
def _of_the_pipeline() -> Iterator[None]:
    """Prefix the problems of an InputError with their path in the scenario: ``tp: ...`` becomes
    ``strategy.pipeline.tp: ...``.
    """
    try:
        yield
    except InputError as error:
        problems = (
            f"strategy.pipeline.{problem}"
            if hasattr(Parallelism, problem.partition(":")[0])
            else problem
            for problem in error.problems
        )
        raise InputError(problems, error.file) from None


def outcome_of(
    prepared: Prepared,
    strategy: Strategy,
    trace: Trace,
    step: LoweredStep,
    symmetry: Symmetry | None = None,
    whole: Prepared | None = None,
) -> Outcome:
    """The outcome of a trace of ``step``: the trace, with the sources of its op times.

    Where devices of the trace represent others, ``symmetry`` tells which, and ``whole`` is the
    graph prepared for all devices.
    """
    sharded, placed, origins = split(prepared, strategy)
    graph = step.task_graph if step.microbatch is None else step.microbatch
    # Ops are the first tasks of a task graph.
    devices = graph.tasks.source[: len(sharded.graph.ops)]
    copies = None if symmetry is None else symmetry.copies
    costs = op_costs(sharded, devices.tolist(), copies)
    there = whole or prepared
    splitting = _splitting(there, placed, origins, graph, symmetry) if origins else None
    known = rung_shares(costs), cost_misses(sharded, costs), expected_error(costs)
    return Outcome(
        trace, *known, prepared.memory, splitting, step.synchronised,
        strategy=strategy, stages=tuple(_stages(prepared, graph, step.stages)),
        hosts=host_origins(sharded, devices, step.dispatches, copies), symmetry=symmetry,
    )  # fmt: skip


def _stages(prepared: Prepared, task_graph: TaskGraph, stages: Sequence[int]) -> Iterator[Stage]:
    ops, devices = prepared.graph.ops, prepared.cluster.devices
    for number in sorted(set(stages)):
        members = [op for op, stage in enumerate(stages) if stage == number]
        # Backward ops lie in the opposite order, so forwards alone name the span of a stage.
        forward = [op for op in members if ops[op].phase == "forward"] or members
        device = devices[int(task_graph.tasks.source[forward[0]])].name
        yield Stage(device, ops[forward[0]].name, ops[forward[-1]].name, len(members))


def _splitting(
    prepared: Prepared,
    placed: Strategy,
    origins: Mapping[str, Origin],
    step: TaskGraph,
    symmetry: Symmetry | None,
) -> Splitting:
    """The splitting of a step. The unsplit time of a split op is the mean over the devices of its
    parts, so that the slowness of one device does not count as a cost of splitting.
    """
    graph, cluster = prepared.graph, prepared.cluster
    parts = [(name, origin.op) for name, origin in origins.items() if not origin.adds_up]
    names = [placed.placement[name] for name, _ in parts]
    ops = np.array([graph.index[op] for _, op in parts], np.int64)
    durations = prepared.duration_at(ops, np.array([cluster.index[d] for d in names], np.int64))
    copies = {} if symmetry is None else dict(zip(step.devices, symmetry.copies, strict=True))
    time, count = Counter[str](), Counter[str]()
    for (_, op), device, duration in zip(parts, names, durations.tolist(), strict=True):
        if duration != UNKNOWN:
            number = int(copies.get(device, 1))
            time[op] += number * duration
            count[op] += number
    whole = {op: time[op] // count[op] for op in time}
    kinds = {op.name: op.kind for op in graph.ops}
    return Splitting(step, kinds, origins, whole, symmetry)


def fingerprint(value: Any) -> str:
    """A hash of the contents of a scenario or of a part of it. Files that differ only in form, such
    as the order of keys, give equal hashes.
    """
    digest = hashlib.sha256()
    _feed(lambda text: digest.update(text.encode()), value)
    return digest.hexdigest()[:32]


def _feed(write: Callable[[str], None], value: Any) -> None:
    if is_dataclass(value):
        write(f"{type(value).__name__}(")
        for part in fields(value):
            _feed(write, getattr(value, part.name))
        write(")")
    elif isinstance(value, Mapping):
        write("{")
        # The order of keys in a file says nothing.
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
