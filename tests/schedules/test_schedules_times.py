"""Schedules in time: closed forms, golden numbers, Zero Bubble's published rates, laws, engines and
the checker.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev.check import check
from simdev.engine import simulate
from simdev.errors import InputError
from simdev.lowering.pipeline import pipeline_task_graph
from simdev.report.measures.pipeline import PipelineUse, pipeline_use
from simdev.schedules import SCHEDULES, Schedule, gpipe, named_schedule, read_csv, stage_times
from simdev.taskgraph import TRANSFER, Rows, TaskGraph
from simdev.trace import Trace

DOCUMENT = Path(__file__).parents[2] / "docs" / "pipelines.md"
PS = 10**12


def run(
    schedule: Schedule, *times: Any, engine: str = "simpy", **sizes: Any
) -> tuple[PipelineUse, Trace]:
    """Simulate and have the checker judge it. Times are seconds."""
    task_graph = pipeline_task_graph(schedule, stage_times(schedule, *times, **sizes))
    trace = simulate(task_graph, engine)
    assert check(task_graph, trace) == ()
    return pipeline_use(schedule, trace), trace


def step(name: str, ranks: int, microbatches: int, *times: Any, chunks: int = 1) -> Fraction:
    """The step time in seconds."""
    return Fraction(run(named_schedule(name, ranks, microbatches, chunks), *times)[0].step_ps, PS)


def live(report: PipelineUse) -> list[int]:
    return [rank.live for rank in report.ranks]


# --- Golden numbers
# -----------------------------------------------------------------------------------------------


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


# --- Closed forms
# -------------------------------------------------------------------------------------------------

COUNTS = st.integers(1, 6)
TIMES = st.sampled_from([0, 1, 2, 3, 7])


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
    assert report.period.ps == (f + b + Fraction(2 * (p - 1) * c, p)) * PS
    assert report.period.least_ps <= report.period.ps <= report.period.most_ps
    assert report.versions == tuple(p - s for s in range(p))


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=5))
def test_the_slowest_stage_sets_pipedreams_period(stages: list[tuple[int, int, int]]) -> None:
    forward, backward, weight = (list(column) for column in zip(*stages, strict=True))
    report, _ = run(named_schedule("PipeDream", len(stages), 60), forward, backward, weight)
    assert report.period is not None
    assert report.period.repeats
    assert report.period.ps == max(map(sum, stages)) * PS
    assert report.bubble_rate == 0


def test_a_short_run_of_pipedream_has_no_steady_state() -> None:
    assert run(named_schedule("PipeDream", 4, 5), 1, 2)[0].period is None
    assert run(named_schedule("1F1B", 4, 40), 1, 2)[0].period is None


def test_pipedream_that_is_not_steady_yet_tells_a_mean() -> None:
    """Six microbatches after the first four: too few to see a cycle of four."""
    period = run(named_schedule("PipeDream", 4, 7), 1, 2, 0, 1)[0].period
    assert period is not None
    assert not period.repeats
    assert period.least_ps <= period.ps <= period.most_ps


# --- Zero Bubble's published rates
# --------------------------------------------------------------------------------

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


# --- Laws
#
#
#
#
# --------------------------------------------------------------------------------------------------


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
    reports = [run(schedule, *times, engine=engine) for engine in ("simpy", "compiled")]
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
