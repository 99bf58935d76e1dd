"""The schedules that Zero Bubble's heuristic makes from times, under a limit of memory."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule_times import COUNTS, TIMES, run
from simdev.commands import main
from simdev.ground.errors import InputError
from simdev.nouns.schedules import (
    SEARCHED,
    StageTimes,
    named_schedule,
    read_csv,
    searched_schedule,
    stage_times,
    zero_bubble,
)


def shaped(stages: int, *times: object, **sizes: object) -> StageTimes:
    return stage_times(named_schedule("1F1B", stages, 1), *times, **sizes)  # type: ignore[arg-type]


@st.composite
def stages(draw: st.DrawFn) -> tuple[list[int], ...]:
    """Of each stage f, b, w, bytes and those kept for w, of each pair the latency."""
    count = draw(st.integers(1, 5))
    columns = [draw(st.lists(TIMES, min_size=count, max_size=count)) for _ in range(3)]
    comm = draw(st.lists(st.sampled_from([0, 1, 5]), min_size=count - 1, max_size=count - 1))
    kept = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    more = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    return *columns, comm, [a + b for a, b in zip(kept, more, strict=True)], kept


@given(stages(), st.integers(1, 12), st.sampled_from([1, Fraction(5, 4), 2, 3]))
@settings(max_examples=50)
def test_memory_keeps_to_the_limit(
    columns: tuple[list[int], ...], microbatches: int, limit: Fraction
) -> None:
    """Every action stands in it once, in an order that can run: no schedule is made else."""
    *times, made, kept = columns
    schedule = zero_bubble(
        shaped(len(made), *times, activation=made, kept=kept), microbatches, limit
    )
    assert schedule.microbatches == microbatches
    assert len(schedule.actions) == 3 * microbatches * len(made)
    report, _ = run(schedule, *times, activation=made, kept=kept)
    most = max((len(made) - stage) * size for stage, size in enumerate(made))
    assert max(rank.peak for rank in report.ranks) <= limit * most


@given(COUNTS, st.integers(1, 12), st.integers(1, 7), st.integers(1, 7), TIMES, TIMES)
@settings(max_examples=25)
def test_no_stage_ends_before_its_work(p: int, m: int, f: int, b: int, w: int, c: int) -> None:
    times = shaped(p, f, b, w, c)
    for name in SEARCHED:
        report, _ = run(searched_schedule(name, times, m), f, b, w, c)
        assert report.cost_ps >= report.ideal_ps == m * (f + b + w) * 10**12
        assert report.bubble_rate < 1


@given(st.integers(1, 6), st.integers(0, 8), st.data())
@settings(max_examples=25)
def test_zb_1p_is_as_good_as_zb_h1(p: int, more: int, data: st.DataObject) -> None:
    """Equal stages, w <= f, b and free transfers: (p - 1) (f + b - w), or less."""
    w = data.draw(st.integers(1, 4))
    f, b = data.draw(st.integers(w, 8)), data.draw(st.integers(w, 8))
    m = 2 * p + more
    report = run(searched_schedule("ZB-1p", shaped(p, f, b, w), m), f, b, w)[0]
    assert report.cost_ps <= (m * (f + b + w) + (p - 1) * (f + b - w)) * 10**12


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zb_2p_with_equal_times_has_no_bubble(p: int) -> None:
    report, _ = run(searched_schedule("ZB-2p", shaped(p, 1, 1, 1), 3 * p), 1, 1, 1)
    assert report.bubble_rate == 0


def test_the_question_of_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shape = ["--stages", "4", "--microbatches", "8"]
    options = [*shape, "--forward", "3ms", "--backward", "3ms", "--weight", "2ms"]
    file = str(tmp_path / "table.csv")
    assert main(["pipeline", "--schedule", "zb-2P", *options, "--json", "--save-csv", file]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schedule"], answer["stages"]) == ("ZB-2p", 4)
    expected = searched_schedule("ZB-2p", shaped(4, 3, 3, 2), 8)
    with open(file, encoding="utf-8") as text:
        again = read_csv(text.read())
    assert [[a for a in row if a] for row in again.rows] == list(map(list, expected.rows))


def test_what_is_refused() -> None:
    times = shaped(2, 1, 1, 1)
    with pytest.raises(InputError, match="limit: must be at least 1, the memory of 1F1B, got 1/2"):
        zero_bubble(times, 4, Fraction(1, 2))
    with pytest.raises(InputError, match="microbatches: must be at least 1, got 0"):
        zero_bubble(times, 0, 1)
    with pytest.raises(InputError, match="schedule: ZB-1p is made from the times of the stages"):
        named_schedule("ZB-1p", 2, 4)
