"""What-ifs: the gain of a step if a device, a link or a class of ops were faster, by simulation.

For a scenario every answer is the step time of a run of the changed scenario. On a device that is
``factor`` times faster every op takes 1 / factor of its time; gaps stay, and so does the speed at
which a server adds up, which belongs to the policy. Faster hosts dispatch every op, or a step's
graph, in 1 / factor of the time. A faster link has more bandwidth and its old latency; routes are
chosen anew, and measured collectives follow (``collectives.Crossing``). The class of collectives
takes 1 / factor of its time, whatever its cost comes from.

For a saved run only tasks and queues are known. So its tasks are shortened as they ran, and
messages that wait for credit keep their order. The devices, queues and phases of a large model are
treated in this way, too. Here everything sent through a queue takes 1 / factor of its time, with
the held latency, so the answer is a bound: no faster link could bring more. Faster resources of a
large model's machines are runs of the changed scenario.

The page of ``simdev report`` shows them (``report/page/__init__.py``, its notes in ``step.py``).
Changed machines are made by ``execution/changes.py``, whose RESOURCES name the resources. Guarded
by ``tests/report/test_whatif.py`` and ``tests/scenario/test_changes.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..execution.changes import RESOURCES, with_links
from ..execution.engine import choose, simulate
from ..execution.factors import in_steps, of_step
from ..execution.period import follow_one_another, in_step, simulate_lowered, step_time_ps
from ..execution.scenario import Scenario, execute, of_every_device, prepare
from ..lowering import LoweredStep, Prepared, iterated, lower_step, without_short
from ..lowering.symmetry import Symmetry
from ..nouns.fabric import LINK_QUEUES
from ..nouns.graph import Graph, Op
from ..nouns.strategy import Order, Strategy, Sync
from ..nouns.taskgraph import COLLECTIVE, DISPATCH, Bools, Ints, TaskGraph
from ..nouns.trace import Trace
from .measures.spans import computing_mask, transfer_mask
from .measures.usage import Carrier, carriers
from .report import Report, run

# A run of the changed scenario, in which some tasks take a part of their time.
# Lowering takes durations as they are given, so a step is lowered once, and durations are changed
# in what was lowered and repeated (execution/factors.py). Where the strategy itself depends on
# times, it is lowered anew.

BALANCED = ("model-parallel", "expert")  # short forms that cut layers into stages of equal time


@dataclass(frozen=True, slots=True)
class OpSelection:
    """The ops of a class (None: of all classes) on a device, given by its index (None: on all)."""

    of_class: str | None = None
    device: int | None = None


@dataclass(frozen=True, slots=True)
class FasterStep:
    """A scenario lowered to one step, of which chosen tasks take 1 / ``factor`` of their time.

    ``kinds`` has the kinds of the ops by name, which decide their classes (empty: classes are
    phases).
    """

    scenario: Scenario
    prepared: Prepared
    step: LoweredStep
    repeated: bool
    factor: int
    kinds: Mapping[str, str]

    def step_ps(self, chosen: Bools, ops: OpSelection | None, engine: str) -> int:
        """The step time in ps where the chosen tasks are faster; ``ops`` are the ops of these
        tasks, if they belong to ops.

        Raises InputError, DeadlockError.
        """
        # Changed durations need no new lowering where nothing else follows from them.
        if ops is not None and self._depends_on_times:
            return step_time_ps(self.trace(self._lowered(ops), engine))

        def graph_of(rounds: int) -> TaskGraph:
            graph = iterated(self.step, rounds)
            return faster(graph, in_steps(graph, chosen), self.factor)

        return step_time_ps(self.trace(self.step, engine, graph_of))

    def trace(
        self,
        step: LoweredStep,
        engine: str,
        graph_of: Callable[[int], TaskGraph] | None = None,
    ) -> Trace:
        """The trace of a step that the scenario's strategy lowers to.

        Raises InputError, DeadlockError.
        """
        steps = self.scenario.steps
        return simulate_lowered(step, self.scenario.strategy, engine, steps, graph_of)

    @classmethod
    def of(cls, scenario: Scenario, factor: int, kinds: Mapping[str, str]) -> FasterStep:
        """Raises InputError, MissingCostError."""
        prepared = prepare(scenario)
        repeated = follow_one_another(scenario.strategy, scenario.steps)
        step = lower_step(prepared, scenario.strategy, repeated)
        return cls(scenario, prepared, step, repeated, factor, kinds)

    @property
    def _depends_on_times(self) -> bool:
        strategy, pipeline = self.scenario.strategy, self.scenario.strategy.pipeline
        # TicTac orders by times, stages and short forms are balanced by them.
        timed = isinstance(strategy.sync, Sync) and strategy.sync.priority == "tac"
        balanced = pipeline is not None and not pipeline.stages
        return timed or balanced or strategy.short in BALANCED

    def _lowered(self, ops: OpSelection) -> LoweredStep:
        strategy = self._strategy(ops)
        return lower_step(
            self.prepared, strategy, self.repeated, lambda split: self._durations(split, ops)
        )

    def _strategy(self, ops: OpSelection) -> Strategy:
        """The strategy, with a short form expanded where the changed times may balance its stages
        differently.

        A faster device changes no balance, for layers are weighed on a single device.
        """
        strategy = self.scenario.strategy
        if strategy.short not in BALANCED or ops.of_class is None:
            return strategy
        graph, cluster = self.prepared.graph, self.prepared.cluster
        changed = tuple(
            self._faster(i, op) if self._is_of(op, ops) else op for i, op in enumerate(graph.ops)
        )
        faster = Graph(graph.name, changed)
        return without_short(faster, cluster, strategy, self.prepared.costs)

    def _faster(self, i: int, op: Op) -> Op:
        """The op with 1 / ``factor`` of its time, on every kind of device where that is known."""
        devices = self.prepared.cluster.devices
        costs = {device.kind: self.prepared.cost(i, d) for d, device in enumerate(devices)}
        times = {kind: cost.seconds / self.factor for kind, cost in costs.items() if cost}
        return replace(op, time=times)

    def _durations(self, split: Prepared, ops: OpSelection) -> Ints:
        """Durations in ps by op and device of the split graph, with the chosen ops faster;
        collectives keep their durations.
        """
        rows = [
            self._is_of(op, ops) and i not in split.rings for i, op in enumerate(split.graph.ops)
        ]
        places = np.arange(len(split.cluster.devices))
        where = np.ones(len(places), np.bool_) if ops.device is None else places == ops.device
        return part_of(split.duration, np.array(rows, np.bool_)[:, None] & where, self.factor)

    def _is_of(self, op: Op, ops: OpSelection) -> bool:
        return ops.of_class is None or self.kinds.get(op.name, op.phase) == ops.of_class


def part_of(duration: Ints, chosen: Bools, factor: int) -> Ints:
    """The durations, with the chosen ones divided by the factor and rounded up."""
    # A duration that is not known is below 0 and stays.
    return np.where(chosen & (duration > 0), -(-duration // factor), duration)


def faster(graph: TaskGraph, chosen: Bools, factor: int) -> TaskGraph:
    """The task graph whose chosen tasks take a part of their time."""
    duration = part_of(graph.tasks.duration, chosen, factor)
    return replace(graph, tasks=replace(graph.tasks, duration=duration))


FACTOR = 2
RESOURCE = "resource"  # the kind of a what-if about all machines of a large model
MOST = 48  # the busiest devices and queues that are tried
MOST_LINKS = 16  # the busiest links that are tried: each needs a lowering of its own


@dataclass(frozen=True, slots=True)
class WhatIf:
    """An answer: the step with one part made faster, given by its ``kind`` (device, links, link,
    queue, op class, phase, hosts, resource) and ``name``.

    ``busy_ps`` is the time in which the part works in the unchanged step (None: not known),
    ``step_ps`` the step time with the faster part, ``gain`` the share of the step time that this
    saves (below 0 where the step gets longer).
    """

    kind: str
    name: str
    busy_ps: int | None
    step_ps: int
    gain: float


@dataclass(frozen=True, slots=True)
class _Case:
    """A part to make faster, and a function from an engine to the step time (ps) with it."""

    kind: str
    name: str
    busy_ps: int | None
    step_ps: Callable[[str], int]


@dataclass(frozen=True)
class _Subject:
    """The step of a report whose parts are made faster, and its scenario lowered again (None where
    only the tasks of the trace are known).
    """

    report: Report
    factor: int
    lowered: FasterStep | None

    @cached_property
    def trace(self) -> Trace:
        """The trace with its tasks as the window counts them (``period.in_step``)."""
        return in_step(self.report.trace, self.report.steady)

    def busy_ps(self, start: Ints, finish: Ints) -> int:
        """The time of one step that the spans cover together, in ps."""
        return self.report.window.a_step(self.report.window.covered_ps(start, finish))


def what_ifs(
    report: Report,
    kinds: Mapping[str, str] | None = None,
    scenario: Scenario | None = None,
    factor: int = FACTOR,
    watch: Callable[[Sequence[Any]], Sequence[Any]] = lambda cases: cases,
) -> tuple[WhatIf, ...]:
    """Every device, link and class of ops made ``factor`` times faster, one at a time; the largest
    gain first.

    ``kinds`` has the kinds of the ops by name (None: not known, classes are phases); ``scenario``
    is the scenario of the report (None: a saved run); ``watch`` may show progress. Raises
    InputError.
    """
    if scenario is not None and scenario.disturbances is not None:
        # The gain of a single part would drown in noise.
        scenario = replace(scenario, disturbances=None)
        report = run(of_every_device(scenario))
    elif scenario is not None and isinstance(report.symmetry, Symmetry):
        # Every device has a what-if of its own, so all of them have to be simulated.
        report = run(of_every_device(scenario))
    of_graph = scenario is not None and isinstance(scenario.graph, Graph)
    lowered = FasterStep.of(scenario, factor, kinds or {}) if scenario and of_graph else None
    # All cases first: their number decides whether the compiled engine is worth its compilation.
    cases = list(_cases(_Subject(report, factor, lowered), kinds))
    if scenario is not None and not of_graph:
        cases += [_resource(scenario, name, factor) for name in RESOURCES]
    engine = choose("auto", len(report.trace.task_graph.tasks) * (len(cases) + 1))
    # The unchanged step is simulated in the same way: a saved run may claim any step time.
    base = report.step_ps if lowered else step_time_ps(simulate(report.trace.task_graph, engine))
    answers = []
    for case in watch(cases):
        step_ps = case.step_ps(engine)
        gain = (base - step_ps) / base if base else 0.0
        answers.append(WhatIf(case.kind, case.name, case.busy_ps, step_ps, gain))
    return tuple(sorted(answers, key=lambda answer: -answer.gain))


def _cases(subject: _Subject, kinds: Mapping[str, str] | None) -> Iterator[_Case]:
    yield from _devices(subject)
    yield from _queues(subject) if subject.lowered is None else _links(subject, subject.lowered)
    yield from _classes(subject, kinds)
    dispatches = subject.trace.task_graph.of_kind(DISPATCH)
    if dispatches.any():  # all threads at once
        yield _shorter(subject, dispatches, "hosts", "all")


def _shorter(
    subject: _Subject, chosen: Bools, kind: str, name: str, ops: OpSelection | None = None
) -> _Case:
    """The case of chosen tasks that take a part of their time; ``ops`` are their ops, if any."""
    trace, lowered = subject.trace, subject.lowered

    def step_ps(engine: str) -> int:
        if lowered is not None:
            return lowered.step_ps(of_step(trace.task_graph, chosen), ops, engine)
        return step_time_ps(simulate(faster(trace.task_graph, chosen, subject.factor), engine))

    return _Case(kind, name, subject.busy_ps(trace.start[chosen], trace.finish[chosen]), step_ps)


def _resource(scenario: Scenario, name: str, factor: int) -> _Case:
    """The case of a resource of all machines of a large model, lowered anew, with the symmetry of
    the unchanged step.
    """

    def step_ps(engine: str) -> int:
        changed = RESOURCES[name](scenario, factor)
        return execute(replace(changed, engine=engine)).trace.end_ps

    return _Case(RESOURCE, name, None, step_ps)


def _devices(subject: _Subject) -> Iterator[_Case]:
    task_graph = subject.trace.task_graph
    computes, source = computing_mask(task_graph), task_graph.tasks.source
    working = np.unique(source[computes]).tolist()
    yield from _busiest(
        _shorter(
            subject, computes & (source == device), "device", task_graph.devices[device],
            OpSelection(device=device),
        )
        for device in working
    )  # fmt: skip
    if len(working) > 1:
        yield _shorter(subject, computes, "devices", "all", OpSelection())


def _classes(subject: _Subject, kinds: Mapping[str, str] | None) -> Iterator[_Case]:
    task_graph = subject.trace.task_graph
    tasks, computes, kind_of = task_graph.tasks, computing_mask(task_graph), kinds or {}
    of_task = zip(tasks.op.tolist(), tasks.kind, strict=True)
    classes = np.array([kind_of.get(tasks.name[op], phase) for op, phase in of_task], dtype=object)
    for name in sorted(set(classes[computes & (tasks.duration > 0)].tolist())):
        chosen: Bools = computes & (classes == name).astype(np.bool_)
        kind = "op class" if kinds else "phase"
        yield _shorter(subject, chosen, kind, name, OpSelection(of_class=name))
    collectives = task_graph.of_kind(COLLECTIVE) & ~tasks.flow
    if collectives.any():
        yield _shorter(subject, collectives, "op class", "collectives")


def _queues(subject: _Subject) -> Iterator[_Case]:
    """The cases of queues, half-links and pairs of devices that carry transfers. Collectives, which
    hold many at once, do not count.
    """
    trace, task_graph = subject.trace, subject.trace.task_graph
    sends = transfer_mask(task_graph) & ~task_graph.of_kind(COLLECTIVE)
    cases = [
        _carrier(subject, carrier, carrier.tasks[sends[carrier.tasks]])
        for carrier in carriers(trace)
        if sends[carrier.tasks].any()
    ]
    yield from _busiest(cases)
    if len(cases) > 1 and task_graph.tasks.flow.any():
        yield _wider(subject, list(range(len(task_graph.links))), "all", None)
    elif len(cases) > 1:
        yield _shorter(subject, sends, "queues", "all")


def _busiest(cases: Iterable[_Case]) -> list[_Case]:
    return sorted(cases, key=lambda case: -(case.busy_ps or 0))[:MOST]


def _carrier(subject: _Subject, carrier: Carrier, through: Ints) -> _Case:
    """The case of a carrier that is faster for the tasks that go through it."""
    trace, task_graph = subject.trace, subject.trace.task_graph
    if task_graph.tasks.flow[through].any():
        busy = subject.busy_ps(carrier.start, trace.finish[carrier.tasks])
        return _wider(subject, [task_graph.links.index(carrier.name)], carrier.name, busy)
    chosen = np.zeros(len(task_graph.tasks), np.bool_)
    chosen[through] = True
    return _shorter(subject, chosen, "queue", carrier.name)


def _wider(subject: _Subject, rows: Sequence[int], name: str, busy_ps: int | None) -> _Case:
    """The case of shared half-links with more bandwidth."""

    def step_ps(engine: str) -> int:
        task_graph = subject.trace.task_graph
        bandwidth = task_graph.bandwidth.copy()
        bandwidth[rows] *= subject.factor
        return step_time_ps(simulate(replace(task_graph, bandwidth=bandwidth), engine))

    return _Case("link" if len(rows) == 1 else "links", name, busy_ps, step_ps)


def _links(subject: _Subject, lowered: FasterStep) -> Iterator[_Case]:
    """The cases of links that carry something: all of a kind together, then one by one."""
    links, serve = lowered.scenario.cluster.links, lowered.prepared.fabric.links_serve
    used: Mapping[int, int] = {}
    if transfer_mask(subject.trace.task_graph).any():
        used = _carrying(subject) if serve else _carrying_as_queues(lowered)

    def wired(rows: Sequence[int], kind: str, name: str, busy_ps: int | None = None) -> _Case:
        # Simulated only when it is called, so that a progress bar can count the cases.
        return _Case(kind, name, busy_ps, lambda engine: _wired_ps(lowered, rows, engine))

    # A single kind would only repeat the line for all links.
    kinds = sorted({links[i].kind for i in used})
    for kind in kinds if len(kinds) > 1 else ():
        yield wired([i for i in used if links[i].kind == kind], "links", kind or "of no kind")
    if len(used) > 1:
        yield wired(list(used), "links", "all")
    for i in sorted(used, key=lambda link: (-used[link], link))[:MOST_LINKS]:
        yield wired([i], "link", " - ".join(links[i].ends), used[i] if serve else None)


def _link_of(lowered: FasterStep) -> list[int]:
    """The index of each half-link's link in the cluster."""
    cluster = lowered.scenario.cluster
    row = {id(link): i for i, link in enumerate(cluster.links)}
    return [row[id(half_link.link)] for half_link in cluster.half_links]


def _carrying(subject: _Subject) -> Mapping[int, int]:
    """The links (by index) that carry something in either direction, with their busy ps."""
    assert subject.lowered is not None
    trace, half_links = subject.trace, subject.lowered.scenario.cluster.half_links
    carried = {carrier.name: carrier for carrier in carriers(trace)}
    through = dict[int, list[Carrier]]()
    for half_link, i in zip(half_links, _link_of(subject.lowered), strict=True):
        if half_link.name in carried:
            through.setdefault(i, []).append(carried[half_link.name])
    busy = {}
    for i, both in through.items():
        finish = [trace.finish[carrier.tasks] for carrier in both]
        start = np.concatenate([carrier.start for carrier in both])
        busy[i] = subject.busy_ps(start, np.concatenate(finish))
    return {i: ps for i, ps in busy.items() if ps}


def _carrying_as_queues(lowered: FasterStep) -> Mapping[int, int]:
    """The links (by index) that carry something, with their busy ps, where links are no queues: the
    scenario is lowered with a queue for each link, which every message holds as it passes.
    """
    scenario, link_of = lowered.scenario, np.array(_link_of(lowered), np.int64)
    # A sequence of the strategy may name queues that this lowering does not have.
    strategy = replace(scenario.strategy, order=Order())
    if isinstance(strategy.sync, Sync):
        strategy = replace(strategy, sync=replace(strategy.sync, hold="together"))
    cluster = replace(scenario.cluster, queues=LINK_QUEUES)
    tasks = lower_step(lowered.prepared.on(cluster), strategy).task_graph.tasks
    # The resources of half-links follow those of the devices.
    half_link, task = tasks.resources.ids - len(cluster.devices), tasks.resources.owners()
    sent = (half_link >= 0) & (half_link < len(link_of)) & (tasks.bytes[task] > 0)
    busy = np.zeros(len(cluster.links), np.int64)
    np.add.at(busy, link_of[half_link[sent]], tasks.duration[task[sent]])
    return {i: int(busy[i]) for i in np.flatnonzero(busy).tolist()}


def _wired_ps(lowered: FasterStep, rows: Collection[int], engine: str) -> int:
    """The step time in ps if the links ``rows`` had more bandwidth."""
    scenario = lowered.scenario
    cluster = with_links(scenario.cluster, lowered.factor, rows=rows)
    step = lower_step(lowered.prepared.on(cluster), scenario.strategy, lowered.repeated)
    return step_time_ps(lowered.trace(step, engine))
