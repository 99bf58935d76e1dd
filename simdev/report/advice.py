"""Changes of the machine, or of the way a script is run, and the simulated step time of each.

``simdev capture`` prints them. ``whatif`` instead makes single parts of a step faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from ..execution.changes import LINKS, NETWORK, RESOURCES
from ..execution.engine import choose
from ..execution.period import follow_one_another, simulate_lowered, step_time_ps
from ..execution.scenario import Scenario, execute, prepare
from ..lowering import lower_step
from ..nouns.cluster import Host
from .measures.spans import transfer_mask
from .report import Report
from .table import CHANGE, TEXT, TIME, Table
from .whatif import FACTOR, WhatIf

FREE = "no communication cost (a bound)"
HOSTLESS = "no host (CUDA graphs: a bound)"


def advice(report: Report, scenario: Scenario) -> tuple[WhatIf, ...]:
    """The step times of a graph after each change, the largest gain first. Raises InputError,
    DeadlockError.
    """
    now = report.step_ps
    answers = (change(name, step(), now) for name, step in _cases(report, scenario))
    return tuple(sorted(answers, key=lambda answer: answer.step_ps))


def change(name: str, step_ps: int, now_ps: int) -> WhatIf:
    """The answer for a change that makes a step of ``now_ps`` take ``step_ps``."""
    return WhatIf("change", name, None, step_ps, 1 - step_ps / now_ps if now_ps else 0.0)


def advice_table(changes: Iterable[WhatIf], now_ps: int) -> Table:
    """The table of changes, a row each, below the row of the unchanged step."""
    rows = [
        ("as it is", now_ps, None),
        *((each.name, each.step_ps, -each.gain) for each in changes),
    ]
    columns = {"change": TEXT, "step time": TIME, "by": CHANGE}
    return Table("What a change would bring, each simulated", columns, tuple(rows))


def _cases(report: Report, scenario: Scenario) -> Iterator[tuple[str, Callable[[], int]]]:
    if transfer_mask(report.trace.task_graph).any():
        for name in (NETWORK, LINKS):
            faster = RESOURCES[name](scenario, FACTOR)
            if faster is not scenario:
                yield f"{name} twice as fast", partial(_step_ps, faster)
        yield FREE, partial(_free_ps, scenario)
    if report.hosts:
        cluster = replace(
            scenario.cluster,
            host=Host(mode="none"),
            devices=tuple(replace(device, host=None) for device in scenario.cluster.devices),
        )
        yield HOSTLESS, partial(_step_ps, replace(scenario, cluster=cluster))


def _step_ps(scenario: Scenario) -> int:
    return step_time_ps(execute(scenario).trace)


def _free_ps(scenario: Scenario) -> int:
    """The step time in ps if all communication took no time."""
    repeated = follow_one_another(scenario.strategy, scenario.steps)
    step = lower_step(prepare(scenario), scenario.strategy, repeated)
    graph, moves = step.task_graph, transfer_mask(step.task_graph)
    tasks = replace(
        graph.tasks,
        duration=np.where(moves, 0, graph.tasks.duration),
        lag=np.where(moves, 0, graph.tasks.lag),
        gap=np.where(moves, 0, graph.tasks.gap),
        bytes=np.where(moves, 0, graph.tasks.bytes),
    )
    engine = choose("auto", len(tasks))
    free = replace(step, task_graph=replace(graph, tasks=tasks))
    return step_time_ps(simulate_lowered(free, scenario.strategy, engine, scenario.steps))
