"""Pipelines and their times that the tests of schedules share."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.lowering.pipeline import pipeline_task_graph
from simdev.nouns.schedules import Schedule, named_schedule, stage_times
from simdev.nouns.trace import Trace
from simdev.report.measures.pipeline import PipelineUse, pipeline_use

PS = 10**12


def run(
    schedule: Schedule, *times: Any, engine: str = "simpy", **sizes: Any
) -> tuple[PipelineUse, Trace]:
    """Simulates a schedule, with times in seconds; asserts that the checker accepts the trace."""
    task_graph = pipeline_task_graph(schedule, stage_times(schedule, *times, **sizes))
    trace = simulate(task_graph, engine)
    assert check(task_graph, trace) == ()
    return pipeline_use(schedule, trace), trace


def step(name: str, ranks: int, microbatches: int, *times: Any, chunks: int = 1) -> Fraction:
    """The step time in seconds."""
    return Fraction(run(named_schedule(name, ranks, microbatches, chunks), *times)[0].step_ps, PS)


def live(report: PipelineUse) -> list[int]:
    return [rank.live for rank in report.ranks]


COUNTS = st.integers(1, 6)


TIMES = st.sampled_from([0, 1, 2, 3, 7])
