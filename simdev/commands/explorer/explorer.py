"""The page of a scenario under other settings, simulated anew.

Where only times change (``can_be_retimed``) the step is lowered once. Where only memories change it
is not even simulated again. Else every setting is lowered anew, which takes as long as ``simdev
simulate``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

from ...execution.period import follow_one_another, simulate_lowered
from ...execution.scenario import Outcome, Scenario, execute, load_scenario, prepare
from ...files.examples import scenario_path
from ...files.reading import read_json
from ...lowering import (
    LoweredStep,
    can_be_retimed,
    capacities,
    hangs_on_op_times,
    lower_step,
    retimed,
    retimes_to_itself,
)
from ...nouns.graph import Graph
from ...nouns.strategy import Strategy
from ...report import analyze
from ...report.page import Subject, run_data
from .knobs import MEMORY, SPEED, checked, knobs_of, turned

# The part of a timeline that does not depend on times, which a page already has.

LASTING = ("name", "source", "destination", "bytes")
"""The columns of a timeline's tasks that stay as long as the tasks do."""


class Kept:
    """The part of the last timeline that does not depend on times, and the number by which pages
    refer to it (``shape``).
    """

    def __init__(self) -> None:
        self._part: object = None
        self._shape = 0

    def shortened(self, timeline: dict[str, Any], shape: int | None) -> dict[str, Any]:
        """The timeline with its ``shape``. If a page already has this shape, the parts that it has
        (LASTING and ``before``) are left out.
        """
        tasks, before = timeline["tasks"], timeline["before"]
        part = [*(tasks[column] for column in LASTING), before]
        if part != self._part:
            self._part, self._shape = part, self._shape + 1
        answer = timeline | {"shape": self._shape}
        if shape != self._shape:
            return answer
        del answer["before"]
        return answer | {"tasks": {name: tasks[name] for name in tasks if name not in LASTING}}


class Explorer:
    """A scenario that is simulated under one setting after another.

    ``name`` is its name on pages, ``strategy`` the strategy as written in its file. With ``anew``
    the step is lowered for every setting, as ``simdev simulate`` does; answers are the same. Raises
    SimdevError where the scenario itself cannot be simulated.
    """

    def __init__(
        self, scenario: Scenario, name: str, strategy: Any = None, anew: bool = False
    ) -> None:
        if scenario.engine == "auto" and find_spec("numba") is not None:
            # Many steps will be simulated, so the compiled engine is worth its loading.
            scenario = replace(scenario, engine="compiled")
        self.scenario, self.name, self.strategy = scenario, name, strategy
        self.knobs = tuple(knobs_of(scenario))
        self._kept = Kept()
        # Noise and pauses need a step that is lowered and simulated as a whole.
        self._anew = anew or scenario.disturbances is not None
        self._prepared = prepare(scenario) if isinstance(scenario.graph, Graph) else None
        self._latest = scenario.strategy, execute(scenario, self._prepared)
        self._lowered: tuple[LoweredStep, Outcome] | None = None
        if self._retimes(scenario.strategy):
            self._lowered = self._lower(scenario.strategy), self._latest[1]
        self._timed: tuple[Mapping[str, Fraction], Outcome] | None = None

    def _retimes(self, strategy: Strategy, speed: Fraction = Fraction(1)) -> bool:
        """Whether the step, lowered once, can get other times."""
        if self._prepared is None or self._anew:
            return False
        if speed != 1 and hangs_on_op_times(strategy):
            return False
        return can_be_retimed(self._prepared, strategy)

    def _lower(self, strategy: Strategy) -> LoweredStep:
        """The lowered step that gets other times. Where these would be wrong, every later setting
        is lowered anew.
        """
        assert self._prepared is not None
        repeated = follow_one_another(strategy, self.scenario.steps)
        step = lower_step(self._prepared, strategy, repeated)
        self._anew |= not retimes_to_itself(step, self._prepared)
        # Kinds as numbers, and names as texts, are made once here instead of for each answer.
        graph = step.task_graph
        tasks = replace(graph.tasks, kind=graph.kinds, name=tuple(graph.tasks.name))
        buffers = replace(graph.buffers, name=tuple(graph.buffers.name))
        return replace(step, task_graph=replace(graph, tasks=tasks, buffers=buffers))

    def page(
        self, settings: Mapping[str, Any], tables: bool = True, shape: int | None = None
    ) -> dict[str, Any]:
        """The data of the step's page under these settings (numbers by the names of knobs; other
        knobs keep the scenario's values), with or without ``tables``.

        ``shape`` is the ``timeline["shape"]`` of an earlier answer: parts that do not depend on
        times are left out if they have not changed since (``Kept``). Raises SimdevError.
        """
        exact = checked(self.knobs, settings)
        outcome = self._outcome_of(exact)
        report = analyze(outcome, replays=tables)
        subject = Subject(self.name, report, outcome.scenario, strategy=self.strategy)
        data = run_data(subject, tables=tables)
        return data | {"timeline": self._kept.shortened(data["timeline"], shape)}

    def _outcome_of(self, settings: Mapping[str, Fraction]) -> Outcome:
        timing = {name: value for name, value in settings.items() if name != MEMORY}
        scenario = turned(self.scenario, settings)
        if self._anew:
            return self._simulated(scenario, timing)
        if self._timed is None or self._timed[0] != timing:
            self._timed = timing, self._simulated(turned(self.scenario, timing), timing)
        return _with_memories(self._timed[1], scenario)

    def _simulated(self, scenario: Scenario, settings: Mapping[str, Fraction]) -> Outcome:
        if self._prepared is None:
            return execute(scenario)
        strategy, speed = scenario.strategy, settings.get(SPEED, Fraction(1))
        prepared = self._prepared.on(scenario.cluster).at(speed)
        if not self._retimes(strategy, speed):
            return execute(scenario, prepared)
        if self._lowered is None or self._lowered[1].strategy != strategy:
            # Another number of microbatches makes other tasks, which are lowered once.
            if self._latest[0] != strategy:
                self._latest = strategy, execute(scenario, prepared)
                return self._latest[1]
            self._lowered = self._lower(strategy), self._latest[1]
            if self._anew:
                return execute(scenario, prepared)
        step, outcome = self._lowered
        trace = simulate_lowered(retimed(step, prepared), strategy, scenario.engine, scenario.steps)
        return replace(outcome, trace=trace, scenario=scenario)


def _with_memories(outcome: Outcome, scenario: Scenario) -> Outcome:
    """The outcome of a scenario that differs only in the memories of its devices, which never
    change times (rule 7 of ARCHITECTURE.md).
    """
    graph, cluster = outcome.trace.task_graph, scenario.cluster
    devices = [cluster.devices[cluster.index[name]] for name in graph.devices]
    held = replace(graph, capacity=capacities(devices))
    return replace(outcome, trace=replace(outcome.trace, task_graph=held), scenario=scenario)


def explorer_of(
    scenario: Scenario | str | os.PathLike[str], name: str = "", anew: bool = False
) -> Explorer:
    """The explorer of a scenario, given as such, by its file, or by the name of an example;
    ``name`` is its name on pages, ``anew`` lowers every setting. Raises SimdevError.
    """
    if isinstance(scenario, Scenario):
        return Explorer(scenario, name or scenario.graph.name, anew=anew)
    path = scenario_path(os.fspath(scenario))
    document = read_json(path)
    strategy = document.get("strategy") if isinstance(document, Mapping) else None
    return Explorer(load_scenario(path), name or os.path.basename(path), strategy, anew)
