"""Stages with replicas: PipeDream's 1F1B-RR, its weights, its rhythm and what it waits for."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule_times import PS, TIMES, run
from simdev.commands import main
from simdev.ground.errors import InputError
from simdev.nouns.schedules import Action, Schedule, named_schedule, round_robin
from simdev.report.figures.charts import pipeline_chart
from simdev.report.figures.gantt import draw_gantt
from simdev.report.measures.pipeline import PipelineUse

REPLICAS = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def period(report: PipelineUse) -> Fraction:
    """Seconds of a microbatch, of a state that was seen to repeat."""
    assert report.period is not None
    assert report.period.repeats
    assert report.period_ps is not None
    return report.period_ps / PS


def test_microbatches_take_replicas_in_turn() -> None:
    """Two replicas, then one stage: the paper's figure 8. Forward and backward stay together."""
    schedule = round_robin([2, 1], 6)
    assert [" ".join(map(str, row)) for row in schedule.rows] == [
        "0F0 0F2 0B0 0F4 0B2 0B4",
        "0F1 0F3 0B1 0F5 0B3 0B5",
        "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3 1F4 1B4 1F5 1B5",
    ]
    assert (schedule.home, schedule.rank_of, schedule.chunks) == ((0, 1, 2), (0, 2), (1, 1, 1))
    assert (schedule.ranks, schedule.stages, schedule.round) == (3, 2, 2)
    assert schedule.replica(Action(0, "B", 5)) == 1


@given(st.integers(1, 6), st.integers(6, 12))
def test_one_replica_each_is_the_straight_pipeline(stages: int, microbatches: int) -> None:
    assert round_robin([1] * stages, microbatches) == named_schedule(
        "PipeDream", stages, microbatches
    )


@settings(max_examples=30)
@given(st.lists(st.integers(1, 15), min_size=1, max_size=4))
def test_microbatches_in_flight_and_versions_of_weights(replicas: list[int]) -> None:
    """NOAM is ceil(workers / replicas of the first stage); a later stage needs the same of what is
    left, and as many versions of its weights (Narayanan et al. 2019, sections 3.2 and 3.3).
    """
    report, _ = run(round_robin(replicas, 2 * sum(replicas)), 1, 1)
    needed = [-(-sum(replicas[s:]) // count) for s, count in enumerate(replicas)]
    assert list(report.versions) == needed
    ranks = [need for need, count in zip(needed, replicas, strict=True) for _ in range(count)]
    warm = [sum(a.kind == "F" for a in row[: row.index(next(b for b in row if b.kind == "B"))])  # type: ignore[union-attr]
            for row in report.schedule.rows]  # fmt: skip
    assert warm == ranks
    assert all(rank.live <= most for rank, most in zip(report.ranks, ranks, strict=True))


@given(st.integers(2, 5), TIMES, TIMES, TIMES)
def test_one_stage_of_replicas(count: int, f: int, b: int, sync: int) -> None:
    """(f + b) / r, and all of the synchronisation: nothing runs beside it."""
    report, _ = run(round_robin([count], 6 * count), f, b, sync=sync)
    assert period(report) == Fraction(f + b + sync, count)
    assert all(rank.sync_ps == 6 * sync * PS for rank in report.ranks)


def test_a_slow_replica_sets_the_rhythm() -> None:
    """Microbatches take turns whoever is ready: two fast replicas wait for the slow one."""
    slow, _ = run(round_robin([3, 1], 60), [1, 1, 2, 0], [2, 2, 7, 0])
    assert period(slow) == Fraction(9, 3)
    assert period(run(round_robin([3, 1], 60), [1, 0], [2, 0])[0]) == 1
    apart, _ = run(round_robin([3, 1], 60), [1, 1, 2, 0], [2, 2, 7, 0], sync=None)
    assert period(apart) == Fraction(9, 3)


@pytest.mark.parametrize(
    ("replicas", "together", "apart"),
    [
        ((5,), 3, 3),
        ((15, 1), 3, 3),
        ((3, 1), 3, 3),
        ((2, 2), 3, 3),
        ((1, 2), Fraction(15, 4), 3),
        ((4, 4, 8), Fraction(15, 4), 3),
        ((12, 2, 1, 1), Fraction(9, 2), 3),
        ((1, 3, 1), 7, 6),
    ],
)
def test_balanced_stages(replicas: tuple[int, ...], together: Fraction, apart: Fraction) -> None:
    """A replica of stage s takes 3 r_s, so that no stage alone needs more than 3 a microbatch, as
    PipeDream plans. Replicas that wait for one another, and not: those that are fed one after
    another end so, and wait for the last; and the order of a rank is fixed, so in 1-3-1 a middle
    replica goes forward with the fourth microbatch before it goes backward with the first.
    """
    times = list(replicas), [2 * count for count in replicas]
    schedule = round_robin(replicas, 16 * max(replicas))
    assert period(run(schedule, *times)[0]) == together
    assert period(run(schedule, *times, sync=None)[0]) == apart


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Schedule, tuple[list[int], ...], list[int] | None]:
    replicas = draw(REPLICAS)
    schedule = round_robin(replicas, draw(st.integers(max(replicas), 16)))

    def column(size: int) -> list[int]:
        return draw(st.lists(st.sampled_from([0, 1, 2, 3]), min_size=size, max_size=size))

    every, stages = len(schedule.home), len(replicas)
    times = column(every), column(every), column(every), column(stages - 1)
    return schedule, times, draw(st.sampled_from([None, column(stages)]))


@settings(max_examples=30)
@given(pipelines())
def test_every_pipeline_ends_alike_in_both_engines(drawn: Any) -> None:
    schedule, times, sync = drawn
    report, trace = run(schedule, *times, sync=sync, parameters=7, activation=2)
    pytest.importorskip("numba")
    _, other = run(schedule, *times, sync=sync, parameters=7, activation=2, engine="compiled")
    assert (trace.start == other.start).all()
    for rank, actions in zip(report.ranks, schedule.rows, strict=True):
        stage = next(action.stage for action in actions if action is not None)
        assert rank.peak == 7 * report.versions[stage] + 2 * rank.live


@settings(max_examples=20)
@given(REPLICAS, st.data())
def test_no_stage_is_faster_than_its_slowest_replica(
    replicas: list[int], data: st.DataObject
) -> None:
    schedule = round_robin(replicas, 240)
    times = [data.draw(st.lists(TIMES, min_size=sum(replicas), max_size=sum(replicas)))
             for _ in range(2)]  # fmt: skip
    report, trace = run(schedule, *times, engine="auto")
    if report.period is None or not report.period.repeats:
        return
    alone = [
        Fraction(times[0][r] + times[1][r], replicas[stage])
        for stage, first in enumerate(schedule.first_replica)
        for r in range(first, first + replicas[stage])
    ]
    assert period(report) >= max(alone)
    # So it goes on: what was simulated after it repeats, too.
    ends = {a.microbatch: t for a, t in zip(schedule.actions, trace.finish.tolist(), strict=False)
            if (a.stage, a.kind) == (0, "F")}  # fmt: skip
    cycle = report.period.cycle * schedule.round
    assert ends[239] - ends[239 - cycle] == cycle * report.period_ps


def test_tables_with_replicas_that_cannot_be() -> None:
    rows = round_robin([2, 1], 4).rows
    with pytest.raises(InputError, match="only an asynchronous schedule"):
        Schedule(rows, replicas=(2, 1))
    with pytest.raises(InputError, match=r"must hold 2 numbers of at least 1.*got \[3\]"):
        Schedule(rows, "x", True, (3,))
    with pytest.raises(InputError, match="belongs to replica 0 of stage 0, which runs on rank 0"):
        Schedule((rows[0][:2] + rows[1][2:], rows[1][:2] + rows[0][2:], rows[2]), "x", True, (2, 1))
    with pytest.raises(InputError, match="rank 0: runs the replicas 0 and 1 of stage 0"):
        Schedule((rows[0] + rows[1], rows[2]), "x", True, (2, 1))
    with pytest.raises(InputError, match=r"replicas\[1\]: must be at least 1, got 0"):
        round_robin([2, 0], 4)
    with pytest.raises(InputError, match="microbatches: must be at least 3"):
        round_robin([3, 1], 2)
    with pytest.raises(InputError, match="1F1B has none"):
        named_schedule("1F1B", 2, 4, replicas=[2, 1])
    with pytest.raises(InputError, match="must hold 2 numbers, one for each stage, got 1"):
        named_schedule("PipeDream", 2, 4, replicas=[2])


SMALL = ["pipeline", "--stages", "2", "--microbatches", "30", "--forward", "3ms,1ms",
         "--backward", "6ms,2ms"]  # fmt: skip


def test_replicas_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL, "--schedule", "PipeDream", "--replicas", "3,1", "--sync", "0.6ms"]
    assert main([*arguments, "--check"]) == 0
    printed = capsys.readouterr()
    assert "PipeDream: 2 stages on 4 ranks" in printed.out
    assert "Steady period 3.2 ms a microbatch (exact, repeats every 3)" in printed.out
    assert "synchronising" in printed.out
    assert printed.err.endswith("no violation\n")
    assert main([*arguments, "--forward", "1ms,2ms,3ms,4ms,5ms"]) == 2
    assert "must hold 1 value or 4, one for each stage or replica, got 5" in capsys.readouterr().err
    assert main([*arguments, "--replicas", "3,x"]) == 2
    assert "--replicas: must be whole numbers" in capsys.readouterr().err


def test_the_chart_shows_what_synchronises() -> None:
    report, trace = run(round_robin([2, 1], 6), 1, 2, sync=1)
    chart = pipeline_chart(report, trace)
    legend = draw_gantt(chart).get_legend()
    assert legend is not None
    assert "synchronising" in [text.get_text() for text in legend.get_texts()]
    assert len(chart.rows[0].tasks[chart.rows[0].tasks >= len(report.schedule.actions)]) == 3
