"""Times of pipelines: golden ones, closed forms."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedule_times import COUNTS, PS, TIMES, live, run, step
from simdev.nouns.schedules import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    Action,
    Schedule,
    named_schedule,
)


@pytest.mark.parametrize(
    ("name", "shape", "times", "makespan", "activations"),
    [
        ("GPipe", (4, 8), (1, 2), 33, [8, 8, 8, 8]),
        ("1F1B", (4, 8), (1, 2), 33, [4, 3, 2, 1]),
        ("Interleaved1F1B", (4, 8, 2), (2, 4), 57, [11, 9, 7, 5]),
        ("Interleaved1F1B", (8, 32, 2), (2, 2), 142, [23, 21, 19, 17, 15, 13, 11, 9]),
    ],
)
def test_golden_pipelines(
    name: str, shape: tuple[int, ...], times: tuple[int, int], makespan: int, activations: list[int]
) -> None:
    report, _ = run(named_schedule(name, *shape), *times)
    assert report.step_ps == makespan * PS
    assert live(report) == activations


def test_alpas_formula_for_unequal_stages() -> None:
    """Sum of the stages + (m - 1) x the slowest (Zheng et al. 2022): 12 + 3 x 5."""
    assert step("GPipe", 3, 4, [3, 5, 4], 0) == 27


@given(st.sampled_from(["GPipe", "1F1B"]), COUNTS, st.integers(1, 10), TIMES, TIMES)
def test_gpipe_and_1f1b_take_m_plus_p_minus_1_rounds(
    name: str, p: int, m: int, f: int, b: int
) -> None:
    report, _ = run(named_schedule(name, p, m), f, b)
    assert report.step_ps == (m + p - 1) * (f + b) * PS
    assert report.bubble_rate == (Fraction(p - 1, m + p - 1) if f + b else 0)
    if f and b:
        assert live(report) == ([m] * p if name == "GPipe" else [min(m, p - s) for s in range(p)])


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), TIMES, TIMES)
def test_interleaving_divides_the_bubble_by_the_chunks(
    p: int, rounds: int, v: int, f: int, b: int
) -> None:
    """m (f + b) + (p - 1) (f + b) / v for m a multiple of p (Narayanan et al. 2021, section
    2.2.2).
    """
    m = p * rounds
    report, _ = run(named_schedule("Interleaved1F1B", p, m, v), f, b)
    # Times a third of a picosecond long would be rounded up: here all are whole.
    assert report.step_ps == pytest.approx(
        (m + Fraction(p - 1, v)) * (f + b) * PS, abs=m * v * p * 2
    )
    if f and b and m > p:
        assert live(report) == [min(2 * (p - s - 1) + (v - 1) * p + 1, m * v) for s in range(p)]


@given(st.integers(1, 6), st.integers(0, 8), st.data())
def test_zero_bubble_closed_forms(p: int, more: int, data: st.DataObject) -> None:
    """Where w <= f and w <= b, with enough microbatches: the bubble of ZB-H1 is (p - 1) (f + b -
    w); of ZB-H2 (p - 1) (f + b - 2 w) where that is not negative (Qi et al. 2024, table 2). Live
    activations p and 2 p - 1.
    """
    w = data.draw(st.integers(1, 4))
    f, b = data.draw(st.integers(w, 8)), data.draw(st.integers(w, 8))
    m = 2 * p + more
    first, _ = run(named_schedule("ZB-H1", p, m), f, b, w)
    assert first.cost_ps == (m * (f + b + w) + (p - 1) * (f + b - w)) * PS
    assert live(first) == [p] * p
    second, _ = run(named_schedule("ZB-H2", p, m), f, b, w)
    assert max(live(second)) <= 2 * p - 1
    if f == b and f <= 2 * w:
        assert second.cost_ps == (m * (f + b + w) + max(0, (p - 1) * (f + b - 2 * w))) * PS


def test_zb_h2_with_equal_times_has_no_bubble() -> None:
    report, _ = run(named_schedule("ZB-H2", 4, 8), 1, 1, 1)
    assert report.bubble_rate == 0
    # a parallelogram: the last rank starts, and ends, 3 later
    assert report.step_ps == (24 + 3) * PS
    assert live(report) == [7] * 4


@given(st.sampled_from(SCHEDULES), COUNTS, TIMES, TIMES, TIMES, TIMES)
def test_one_microbatch_takes_serial_time(
    name: str, p: int, f: int, b: int, w: int, c: int
) -> None:
    """Weights' gradients of a split backward may still overlap with what other stages do."""
    report, _ = run(named_schedule(name, p, 1), f, b, w, c)
    serial = p * (f + b + w) + 2 * (p - 1) * c
    hidden = "ZB" in name or "Zero" in name
    assert report.step_ps == (p * (f + b) + w + 2 * (p - 1) * c if hidden else serial) * PS


@given(COUNTS, st.integers(0, 12), TIMES, TIMES, TIMES)
def test_steady_period_of_pipedream(p: int, more: int, f: int, b: int, c: int) -> None:
    """No flush: w = f + b a microbatch, and the round trip 2 (p - 1) c of the latency spread over
    the p in flight.
    """
    report, _ = run(named_schedule("PipeDream", p, 3 * p + 2 + more), f, b, 0, c)
    assert report.period is not None
    assert report.period.repeats
    assert report.period.period_ps == (f + b + Fraction(2 * (p - 1) * c, p)) * PS
    assert min(report.period.later_ps) <= report.period.period_ps <= max(report.period.later_ps)
    assert report.versions == tuple(p - s for s in range(p))


def test_microbatches_in_another_order_have_the_same_period() -> None:
    rows = [[Action(0, kind, number) for kind in (FORWARD, BACKWARD)] for number in range(8)]
    swapped = [action for i in range(8) for action in rows[i ^ 1]]
    report, _ = run(Schedule((tuple(swapped),), asynchronous=True), 1, 2)
    assert report.period is not None
    assert (report.period.period_ps, report.period.cycle) == (3 * PS, 1)


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=5))
def test_the_slowest_stage_sets_pipedreams_period(stages: list[tuple[int, int, int]]) -> None:
    forward, backward, weight = (list(column) for column in zip(*stages, strict=True))
    report, _ = run(named_schedule("PipeDream", len(stages), 60), forward, backward, weight)
    assert report.period is not None
    assert report.period.repeats
    assert report.period.period_ps == max(map(sum, stages)) * PS
    assert report.bubble_rate == 0


def test_a_short_run_of_pipedream_has_no_steady_state() -> None:
    assert run(named_schedule("PipeDream", 4, 5), 1, 2)[0].period is None
    assert run(named_schedule("1F1B", 4, 40), 1, 2)[0].period is None


def test_pipedream_that_is_not_steady_yet_tells_a_mean() -> None:
    """Six microbatches after the first four: too few to see a cycle of four."""
    period = run(named_schedule("PipeDream", 4, 7), 1, 2, 0, 1)[0].period
    assert period is not None
    assert not period.repeats
    assert min(period.later_ps) <= period.period_ps <= max(period.later_ps)
