"""Times of pipelines: golden ones, closed forms, published bubble rates."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedule_times import COUNTS, PS, TIMES, live, run, step
from simdev.engine import simulate
from simdev.lowering.pipeline import pipeline_task_graph
from simdev.report.measures.pipeline import PipelineUse, pipeline_use
from simdev.schedules import SCHEDULES, Schedule, named_schedule, stage_times
from simdev.schedules.actions import BACKWARD, FORWARD, Action
from simdev.taskgraph import TRANSFER, Rows, TaskGraph

DOCUMENT = Path(__file__).parents[2] / "docs" / "pipelines.md"


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


# Model, p, m, f, b, w, comm (ms), and the published rates of 1F1B, interleaved, ZB-H1, ZB-H2: Qi et
# al. 2024, tables 9 and 5. Interleaved: as many chunks as a rank has layers, 24 / 8 and 48 / 16
# (their layers, embeddings counted as one).
PUBLISHED = (
    ("1.5B", 8, 24, "18.522", "18.086", "9.337", "0.601", ".2431", ".1055", ".1585", ".1083"),
    ("1.5B", 8, 32, "18.513", "18.086", "9.331", "0.626", ".1985", ".0818", ".1242", ".0837"),
    ("1.5B", 8, 64, "18.546", "18.097", "9.321", "0.762", ".1240", ".0443", ".0674", ".0444"),
    ("14.6B", 16, 48, "11.347", "11.248", "8.132", "0.377", ".2552", ".1104", ".1397", ".0672"),
    ("14.6B", 16, 64, "11.307", "11.254", "8.101", "0.379", ".2082", ".0852", ".1088", ".0516"),
    ("14.6B", 16, 128, "11.325", "11.308", "8.109", "0.378", ".1251", ".0445", ".0576", ".0266"),
)


# ms, by an independent replay
COSTS_1F1B = ("1456.75", "1833.84", "3357.93", "1980.29", "2478.39", "4497.41")


CHUNKS = 3


@cache
def replay(row: int, name: str) -> PipelineUse:
    _, p, m, *times = PUBLISHED[row][:7]
    chunks = CHUNKS if name == "Interleaved1F1B" else 1
    return run(named_schedule(name, p, m, chunks), *(f"{time}ms" for time in times))[0]


@cache
def replay_without_waits(row: int) -> PipelineUse:
    """Interleaved, where only the first microbatch of each round waits for the last rank's chunk
    before its own.
    """
    _, p, m, *times = PUBLISHED[row][:7]
    schedule = named_schedule("Interleaved1F1B", p, m, CHUNKS)
    task_graph = pipeline_task_graph(
        schedule, stage_times(schedule, *(f"{time}ms" for time in times))
    )
    return pipeline_use(schedule, simulate(_without_waits(schedule, task_graph)))


def _without_waits(schedule: Schedule, task_graph: TaskGraph) -> TaskGraph:
    tasks = task_graph.tasks
    successors = tasks.successors.lists()
    ends = {0, schedule.ranks - 1}
    for task, (source, to) in enumerate(
        zip(tasks.source.tolist(), tasks.destination.tolist(), strict=True)
    ):
        later = schedule.actions[tasks.op[task]].microbatch % schedule.ranks
        if tasks.kind[task] == TRANSFER and {source, to} == ends and later:
            successors[task] = []
    return replace(task_graph, tasks=replace(tasks, successors=Rows.of(successors)))


def rate(report: PipelineUse) -> str:
    return f"{float(report.bubble_rate):.4f}"[1:]


@pytest.mark.parametrize("row", range(len(PUBLISHED)))
@pytest.mark.parametrize(("name", "column"), [("1F1B", 7), ("ZB-H1", 9), ("ZB-H2", 10)])
def test_published_bubble_rates_to_four_decimals(row: int, name: str, column: int) -> None:
    assert rate(replay(row, name)) == PUBLISHED[row][column]


@pytest.mark.parametrize("row", range(len(PUBLISHED)))
def test_published_costs_of_1f1b(row: int) -> None:
    assert f"{replay(row, '1F1B').cost_ps / 10**9:.2f}" == COSTS_1F1B[row]


@pytest.mark.parametrize("row", range(len(PUBLISHED)))
def test_the_published_interleaved_rates_leave_out_waits(row: int) -> None:
    """With every wait the rate is higher; without most of those between the last and the first
    rank, it is theirs.
    """
    assert rate(replay_without_waits(row)) == PUBLISHED[row][8]
    assert rate(replay(row, "Interleaved1F1B")) > PUBLISHED[row][8]


def test_table_of_the_document() -> None:
    """Run with -s to print the table that stands in docs/pipelines.md."""
    lines = []
    for i, row in enumerate(PUBLISHED):
        second = replay(i, "ZB-H2")
        alone = 1 - second.ideal_ps / second.step_ps
        cells = [row[0], *map(str, row[1:3])]
        cells += [
            f"{published} / {rate(replay(i, name))}"
            for name, published in (("1F1B", row[7]), ("ZB-H1", row[9]))
        ]
        cells += [f"{row[10]} / {rate(second)}", f"{alone:.4f}"[1:]]
        cells += [f"{row[8]} / {rate(replay(i, 'Interleaved1F1B'))}", rate(replay_without_waits(i))]
        lines.append(f"| {' | '.join(cells)} |")
    print("\n" + "\n".join(lines))
    document = DOCUMENT.read_text(encoding="utf-8")
    assert all(line in document for line in lines)
