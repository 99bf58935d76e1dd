"""DualPipe: what is published of it, as laws, and actions that overlap."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule_times import PS, live, run
from simdev.commands import main
from simdev.execution.engine import ENGINES, DeadlockError
from simdev.ground.errors import InputError
from simdev.lowering.pipeline import schedule_of
from simdev.nouns.schedules import (
    aligned,
    dualpipe,
    named_schedule,
    read_csv,
    schedule_csv,
    stage_times,
)
from simdev.nouns.strategy.parallelism import Parallelism

HALVES, MORE = st.integers(1, 4), st.integers(0, 3)


@given(HALVES, MORE)
@settings(max_examples=20)
def test_every_action_stands_once_and_in_pairs(half: int, more: int) -> None:
    """A table with an action missing, twice or out of order is no schedule: dualpipe raises."""
    p, m = 2 * half, 4 * half + 2 * more
    schedule = dualpipe(p, m)
    assert (schedule.ranks, schedule.stages, schedule.microbatches) == (p, p, m)
    for rank, row in enumerate(schedule.rows):
        assert {(a.stage, a.microbatch % 2) for a in row if a} == {(rank, 0), (p - 1 - rank, 1)}
    # An overlap joins one way's forward with the other way's backward.
    assert all(a.microbatch % 2 != b.microbatch % 2 for a, b in schedule.pairs.items())
    assert schedule.pairs.keys() == schedule.overlaps
    assert [[a for a in row if a] for row in aligned(schedule).rows] == list(
        map(list, schedule.rows)
    )


@given(HALVES, MORE, st.data())
@settings(max_examples=30)
def test_the_published_bubble_and_memory(half: int, more: int, data: st.DataObject) -> None:
    """Idle (PP/2 - 1)(F&B + B - 3W), two copies, PP + 1 activations (DeepSeek-V3, table 2)."""
    p, m = 2 * half, 4 * half + 2 * more
    w = data.draw(st.integers(0, 5))
    f = data.draw(st.integers(max(w, 1), 6))
    whole = f + w
    both = data.draw(st.integers(whole, f + whole))
    sizes = {"overlapped": both, "activation": 1, "parameters": 1000}
    report, _ = run(dualpipe(p, m), f, f, w, **sizes)
    idle = [report.step_ps - rank.busy_ps for rank in report.ranks]
    assert max(idle) == (half - 1) * (both + whole - 3 * w) * PS
    assert live(report) == [p + 1] * p
    assert [rank.peak for rank in report.ranks] == [2000 + p + 1] * p


@given(HALVES, MORE, st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=20)
def test_one_after_the_other(half: int, more: int, w: int, longer: int) -> None:
    m, f = 4 * half + 2 * more, w + longer
    report, _ = run(dualpipe(2 * half, m), f, f, w)
    assert report.step_ps == (m * (2 * f + w) + (half - 1) * (2 * f - w)) * PS


@given(st.integers(1, 4), MORE, st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=20)
def test_folded_it_has_half_the_ranks(p: int, more: int, w: int, longer: int) -> None:
    """DualPipeV: two stages a rank, of a single copy of the model (DeepSeek's published code)."""
    m, f = 2 * p + more, w + longer + 1
    report, _ = run(named_schedule("DualPipeV", p, m), f, f, w, parameters=2, activation=2)
    # Half of each time for each stage of a rank.
    assert report.step_ps == (2 * m * (2 * f + w) + (p - 1) * (2 * f - w)) * PS // 2
    assert live(report) == [2 * p + 1] * p
    assert [rank.peak for rank in report.ranks] == [2 + 2 * p + 1] * p


@given(HALVES, st.data())
@settings(max_examples=15)
def test_engines_agree_on_overlaps(half: int, data: st.DataObject) -> None:
    pytest.importorskip("numba")
    p, times = 2 * half, st.sampled_from([0, 1, 2, 5])
    columns = [data.draw(st.lists(times, min_size=p, max_size=p)) for _ in range(3)]
    comm, both = data.draw(times), data.draw(st.lists(times, min_size=p, max_size=p))
    schedule, sync = dualpipe(p, 2 * p), data.draw(times)
    traces = [
        run(schedule, *columns, comm, overlapped=both, sync=sync, engine=engine)[1]
        for engine in ENGINES
    ]
    assert (traces[0].finish == traces[1].finish).all()
    # Both of a pair begin and end as one.
    rows = {action: row for row, action in enumerate(schedule.actions)}
    for first, last in schedule.pairs.items():
        assert traces[0].finish[rows[first]] == traces[0].start[rows[last]]
        span = traces[0].finish[rows[last]] - traces[0].start[rows[first]]
        assert span == both[schedule.home[schedule.replica(first)]] * PS


def test_two_that_overlap_by_hand() -> None:
    """Of each of two stages f 1, b 2, w 2: a pair takes 3 in place of 5."""
    schedule = read_csv("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1")
    assert run(schedule, 2, 4, 4)[0].step_ps == 20 * PS
    together, trace = run(schedule, 2, 4, 4, overlapped=6)
    assert together.step_ps == (20 - 2) * PS
    assert [int(t) // PS for t in (trace.start[2], trace.finish[2], trace.finish[3])] == [2, 2, 5]


def test_overlaps_are_read_and_written() -> None:
    table = read_csv("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1")
    assert table.overlaps == {table.rows[0][2]}
    text = schedule_csv(table)
    assert text == "0F0,1F0,,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\r\n"
    assert (read_csv(text).actions, read_csv(text).pairs) == (table.actions, table.pairs)
    assert "(3F5;0B0)OVERLAP_F_B" in schedule_csv(dualpipe(4, 8))


def test_a_pair_that_waits_for_itself_is_a_deadlock() -> None:
    schedule = read_csv("0F0,(0F1;0B1)OVERLAP_F_B,0B0")
    assert run(schedule, 1, 1)[0].step_ps == 4 * PS
    with pytest.raises(DeadlockError, match='"0F1" waits for "0B1"'):
        run(schedule, 1, 1, overlapped=1)


def test_the_copies_sum_their_gradients_at_the_end() -> None:
    """Two stages on both ranks: one sum after the other, when both ranks are done."""
    plain, _ = run(dualpipe(2, 4), 1, 1, 1)
    summed, _ = run(dualpipe(2, 4), 1, 1, 1, sync=[3, 5])
    assert summed.step_ps == plain.step_ps + 8 * PS
    assert summed.cost_ps == plain.cost_ps
    assert [rank.sync_ps for rank in summed.ranks] == [8 * PS] * 2


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((3, 6), "stages: DualPipe needs an even number, got 3"),
        ((4, 9), "an even number of at least 8, got 9"),
        ((4, 6), "an even number of at least 8, got 6"),
        ((4, 8, 2), "chunks: DualPipe runs one stage a rank"),
    ],
)
def test_what_dualpipe_cannot_be(sizes: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        named_schedule("dualpipe", *sizes)


def test_a_strategy_does_not_run_it() -> None:
    for ranks, microbatches in ((2, 4), (3, 1), (4, 8)):
        with pytest.raises(InputError, match=r"^schedule: DualPipe holds two copies of") as error:
            schedule_of(Parallelism(pp=ranks, microbatches=microbatches, schedule="dualpipe"))
        assert len(error.value.problems) == 1
    with pytest.raises(InputError, match=r"^schedule: DualPipeV does some backwards whole"):
        schedule_of(Parallelism(pp=2, microbatches=4, schedule="dualpipev"))


def test_overlapped_times_are_one_for_all_or_for_each_rank() -> None:
    assert stage_times(dualpipe(2, 4), 1, 1, overlapped=[2, 3]).overlapped == (2, 3)
    with pytest.raises(InputError, match="overlapped: must hold 1 value or 2, one for each rank"):
        stage_times(dualpipe(2, 4), 1, 1, overlapped=[2, 3, 4])


def test_the_example_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--stages", "8", "--microbatches", "20", "--json"]
    times = ["--forward", "2ms", "--backward", "2ms", "--weight", "1ms"]
    steps = []
    for options in (["DualPipe", "--overlapped", "4ms"], ["ZB-H1"]):
        assert main(["pipeline", *shape, *times, "--schedule", *options]) == 0
        steps.append(json.loads(capsys.readouterr().out)["step_time_s"])
    assert steps == [0.101, 0.121]
