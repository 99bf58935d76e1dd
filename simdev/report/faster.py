"""A step in which something takes a part of its time, simulated again: a run of the changed
scenario.

Lowering takes durations as they are given, so a step is lowered once, and durations are changed in
what was lowered: before anything stretches them (collectives.slowdown), depends on the schedule
(credit), or follows (other steps). Where the strategy itself depends on times, it is lowered anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..execution.changes import with_launches
from ..execution.period import follow_one_another, simulate_lowered, step_time_ps
from ..execution.scenario import Scenario, prepare
from ..lowering import LoweredStep, Prepared, lower_step, without_short
from ..nouns.graph import Graph, Op
from ..nouns.strategy import Strategy, Sync
from ..nouns.taskgraph import Ints
from ..nouns.trace import Trace

BALANCED = ("model-parallel", "expert")  # short forms that cut layers into stages of equal time


@dataclass(frozen=True, slots=True)
class OpSelection:
    """The ops of a class on a device, by its index (None: of any)."""

    of_class: str | None = None
    device: int | None = None


@dataclass(frozen=True, slots=True)
class FasterStep:
    """A scenario lowered to one step, of which something takes 1 / ``factor`` of its time.

    ``kinds`` are the kinds of the ops by name, by which they are of a class (none: phases).
    """

    scenario: Scenario
    prepared: Prepared
    step: LoweredStep
    repeated: bool
    factor: int
    kinds: Mapping[str, str]

    def step_ps(self, chosen: NDArray[np.bool_], ops: OpSelection | None, engine: str) -> int:
        """The step time in ps where the chosen tasks are faster; ``ops``: those that they are, if
        any.

        Raises InputError, DeadlockError.
        """
        # Changed durations need no new lowering where nothing else follows from them.
        if ops is not None and self._depends_on_times:
            step = self._lowered(ops)
        else:
            graph = self.step.task_graph
            tasks = replace(graph.tasks, duration=self._part(graph.tasks.duration, chosen))
            step = replace(self.step, task_graph=replace(graph, tasks=tasks))
        return step_time_ps(self.trace(step, engine))

    def trace(self, step: LoweredStep, engine: str) -> Trace:
        """The trace of a step that the scenario's strategy lowers to.

        Raises InputError, DeadlockError.
        """
        return simulate_lowered(step, self.scenario.strategy, engine, self.scenario.steps)

    def hosted_ps(self, engine: str) -> int:
        """The step time in ps where all hosts are faster. Raises InputError, DeadlockError."""
        dispatches = self.step.dispatches
        if dispatches is None:
            return step_time_ps(self.trace(self.step, engine))
        prepared = copy(dispatches.prepared)
        prepared.cluster = with_launches(prepared.cluster, self.factor)
        prepared.host_ps = -(-dispatches.prepared.host_ps // self.factor)
        faster = replace(dispatches, prepared=prepared)
        return step_time_ps(self.trace(replace(self.step, dispatches=faster), engine))

    @classmethod
    def of(cls, scenario: Scenario, factor: int, kinds: Mapping[str, str]) -> FasterStep:
        """Raises InputError, MissingCostError."""
        prepared = prepare(scenario)
        repeated = follow_one_another(scenario.strategy, scenario.steps)
        step = lower_step(prepared, scenario.strategy, repeated)
        return cls(scenario, prepared, step, repeated, factor, kinds)

    def _part(self, duration: Ints, chosen: NDArray[np.bool_]) -> Ints:
        """The durations, those chosen divided and rounded up."""
        # A duration that is not known is below 0 and stays.
        return np.where(chosen & (duration > 0), -(-duration // self.factor), duration)

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
        """The strategy with a short form written out that the changed times may balance otherwise.

        A whole device that is faster changes nothing: layers are weighed on one device.
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
        """The op with a part of its time on every kind of device that it is known of."""
        devices = self.prepared.cluster.devices
        costs = {device.kind: self.prepared.cost(i, d) for d, device in enumerate(devices)}
        times = {kind: cost.seconds / self.factor for kind, cost in costs.items() if cost}
        return replace(op, time=times)

    def _durations(self, split: Prepared, ops: OpSelection) -> Ints:
        """Durations in ps by op and device of what the strategy made; collectives keep theirs."""
        rows = [
            self._is_of(op, ops) and i not in split.rings for i, op in enumerate(split.graph.ops)
        ]
        places = np.arange(len(split.cluster.devices))
        where = np.ones(len(places), np.bool_) if ops.device is None else places == ops.device
        return self._part(split.duration, np.array(rows, np.bool_)[:, None] & where)

    def _is_of(self, op: Op, ops: OpSelection) -> bool:
        return ops.of_class is None or self.kinds.get(op.name, op.phase) == ops.of_class
