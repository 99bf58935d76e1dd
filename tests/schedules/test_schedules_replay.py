"""Pipelines as task graphs: both engines, memory, bounds and transfers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule_shapes import gpipe
from schedule_times import COUNTS, PS, TIMES, live, run, step
from simdev.execution.engine import ENGINES
from simdev.ground.errors import InputError
from simdev.lowering.pipeline import pipeline_task_graph
from simdev.nouns.schedules import SCHEDULES, Schedule, named_schedule, read_csv, stage_times
from simdev.nouns.taskgraph import TRANSFER


@given(COUNTS, st.integers(1, 12), TIMES, TIMES, TIMES, TIMES)
def test_zero_bubble_is_never_worse_than_1f1b_on_equal_stages(
    p: int, m: int, f: int, b: int, w: int, c: int
) -> None:
    plain, first, second = (
        run(named_schedule(name, p, m), f, b, w, c)[0] for name in ("1F1B", "ZB-H1", "ZB-H2")
    )
    for report in (first, second):
        assert report.step_ps <= plain.step_ps
        assert report.cost_ps <= plain.cost_ps
        assert report.bubble_rate <= plain.bubble_rate


def test_zero_bubble_can_be_worse_on_unequal_stages() -> None:
    """ZB-H1 puts off the gradients of a slow stage's weights to an end at which nobody else has
    work left.
    """
    times = [0, 2, 0, 8], [1, 3, 1, 2], [0, 8, 1, 0]
    assert step("1F1B", 4, 10, *times) == 139
    assert step("ZB-H1", 4, 10, *times) == 142


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Schedule, tuple[list[int], ...]]:
    """A named schedule with a time for each stage, and a latency for each pair."""
    name = draw(st.sampled_from(SCHEDULES))
    p, chunks = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)) if name.startswith("Interleaved") else 1,
    )
    schedule = named_schedule(name, p, draw(st.integers(1, 2)) * p, chunks)

    def column(size: int) -> list[int]:
        return draw(st.lists(st.sampled_from([0, 1, 2, 3]), min_size=size, max_size=size))

    stages = p * chunks
    return schedule, (column(stages), column(stages), column(stages), column(stages - 1))


@given(pipelines())
@settings(max_examples=60)
def test_engines_agree(pipeline: tuple[Schedule, tuple[list[int], ...]]) -> None:
    pytest.importorskip("numba")
    schedule, times = pipeline
    reports = [run(schedule, *times, engine=engine) for engine in ENGINES]
    (one, trace), (other, second) = reports
    assert (trace.start == second.start).all()
    assert (trace.finish == second.finish).all()
    assert replace(one, engine="") == replace(other, engine="")


@given(pipelines())
@settings(max_examples=60)
def test_live_activations_are_what_memory_replays(
    pipeline: tuple[Schedule, tuple[list[int], ...]],
) -> None:
    """With one byte an activation the peak of a rank counts them."""
    schedule, times = pipeline
    size = [1] * schedule.stages
    report, _ = run(schedule, *times, activation=size)
    assert [rank.peak for rank in report.ranks] == live(report)


@given(pipelines())
@settings(max_examples=60)
def test_bounds_of_the_cost(pipeline: tuple[Schedule, tuple[list[int], ...]]) -> None:
    schedule, times = pipeline
    report, trace = run(schedule, *times)
    assert report.ideal_ps <= report.cost_ps <= report.step_ps == int(trace.finish.max(initial=0))
    assert 0 <= report.bubble_rate < 1
    assert (
        sum(rank.busy_ps for rank in report.ranks)
        == schedule.microbatches * sum(map(sum, times[:3])) * PS
    )


def test_memory_of_zero_bubble_schedules() -> None:
    """Peak of ZB-H1 p M_B as 1F1B, of ZB-H2 (2 p - 1) M_B, where M_W < M_B is what W needs (Qi et
    al., table 2).
    """
    whole, kept = 34 * 4096 + 5 * 32 * 1024, 32 * 4096
    peaks = {}
    for name in ("1F1B", "ZB-H1", "ZB-H2"):
        report, _ = run(named_schedule(name, 8, 24), 30, 29, 20, 1, activation=whole, kept=kept)
        peaks[name] = [rank.peak for rank in report.ranks]
    assert peaks["1F1B"] == [(8 - s) * whole for s in range(8)]
    assert max(peaks["ZB-H1"]) == peaks["ZB-H1"][0] == 8 * whole
    assert max(peaks["ZB-H2"]) == peaks["ZB-H2"][0] == 15 * whole


def test_pipedream_stashes_versions_of_its_weights() -> None:
    report, _ = run(named_schedule("PipeDream", 3, 9), 1, 2, parameters=100, activation=1)
    assert [rank.peak for rank in report.ranks] == [303, 202, 101]
    flush, _ = run(named_schedule("1F1B", 3, 9), 1, 2, parameters=100, activation=1)
    assert [rank.peak for rank in flush.ranks] == [103, 102, 101]


def test_a_v_shaped_table_needs_no_transfer_at_its_turn() -> None:
    """Rank 0 holds stages 0 and 3, rank 1 holds 1 and 2: latency counts between 0 and 1, and 2 and
    3.
    """
    schedule = read_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0")
    report, trace = run(schedule, [1, 1, 1, 1], [2, 2, 2, 2], 0, [10, 1000, 20])
    assert report.step_ps == (12 + 2 * (10 + 20)) * PS
    assert trace.task_graph.tasks.kind.count(TRANSFER) == 4


def test_a_split_backward_sends_before_its_weights() -> None:
    """Stage 1 splits, stage 0 does not: 0B0 waits for 1I0 and the latency alone."""
    report, trace = run(read_csv("0F0,0B0\n1F0,1I0,1W0"), 1, 2, 4, 1)
    starts = dict(zip(trace.task_graph.tasks.name, (trace.start // PS).tolist(), strict=True))
    assert (starts["1F0"], starts["1I0"], starts["1W0"], starts["0B0"]) == (2, 3, 5, 6)
    assert report.step_ps == 12 * PS


def test_task_graph_by_hand() -> None:
    task_graph = pipeline_task_graph(
        gpipe(2, 1), stage_times(gpipe(2, 1), 1, 2, 3, 4, activation=5)
    )
    tasks = task_graph.tasks
    assert tasks.name == ("0F0", "0B0", "1F0", "1B0", "0F0:0>rank 1", "1B0:0>rank 0")
    assert tasks.kind == ("forward", "backward") * 2 + (TRANSFER,) * 2
    assert (tasks.duration // PS).tolist() == [1, 5, 1, 5, 4, 4]
    assert tasks.successors.lists() == [[1, 4], [], [3], [5], [2], [1]]
    assert [(r.name, r.policy, r.sequence) for r in task_graph.resources] == [
        ("rank 0", "fixed", (0, 1)),
        ("rank 1", "fixed", (2, 3)),
    ]
    assert task_graph.buffers.name == ("0F0:0", "1F0:0")
    assert task_graph.buffers.readers.lists() == [[1], [3]]


def test_times_of_another_schedule_are_refused() -> None:
    with pytest.raises(InputError, match="times: are of 2 stages, the schedule has 3"):
        pipeline_task_graph(gpipe(3, 1), stage_times(gpipe(2, 1), 1, 2))


def test_times_that_overflow_are_refused() -> None:
    with pytest.raises(InputError, match="53 days"):
        pipeline_task_graph(gpipe(2, 3), stage_times(gpipe(2, 3), 4e6, 4e6))


def test_a_pipeline_of_no_length_has_no_bubble() -> None:
    report, _ = run(named_schedule("1F1B", 3, 4), 0, 0)
    assert (report.step_ps, report.bubble_rate) == (0, 0)
    flow, _ = run(named_schedule("PipeDream", 3, 20), 0, 0)
    assert flow.bubble_rate == 0
