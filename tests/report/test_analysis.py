"""What a trace means: exact numbers on traces by hand, and laws on random programs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given

from simdev.execution.engine import simulate
from simdev.execution.scenario import Outcome
from simdev.ground.errors import OutOfMemoryError
from simdev.nouns.taskgraph import TaskGraph
from simdev.nouns.trace import Trace
from simdev.report import Report, analyze
from simdev.report.measures.path import BLAMES, NOBODY, critical_path
from simdev.report.measures.spans import covered_ps, timeline_rows
from worlds.scenarios import World, worlds
from worlds.task_graphs import task_graphs
from worlds.traces import HOSTILE, Held, Span, hostile, trace_of, two_devices


def spelled(trace: Trace) -> list[tuple[str, str, int, int]]:
    names = trace.task_graph.tasks.name
    return [(s.blame, names[s.task], s.start_ps, s.finish_ps) for s in critical_path(trace)]


def test_critical_path_by_hand() -> None:
    # d is released at 20, but waits for c until 25 and for c's gap until 26; c starts when a's
    # output arrives.
    assert spelled(two_devices()) == [
        ("compute", "a", 0, 10),
        ("transfer", "a:0>gpu:1", 10, 16),
        ("latency", "a:0>gpu:1", 16, 20),
        ("compute", "c", 20, 25),
        ("launch", "c", 25, 26),
        ("compute", "d", 26, 30),
    ]


def test_blame_sums_to_the_step() -> None:
    blame = analyze(Outcome(two_devices())).blame
    assert blame == {"compute": 19, "transfer": 6, "queueing": 0, "launch": 1, "latency": 4}
    assert sum(blame.values()) == two_devices().end_ps == 30


def test_a_step_that_ends_with_a_release_ends_with_latency() -> None:
    trace = trace_of([Span("a", 0, 5, "gpu:0"), Span("x", 5, 7, "send gpu:0", "a", to=1, lag=3)])
    assert spelled(trace) == [
        ("compute", "a", 0, 5),
        ("transfer", "x", 5, 7),
        ("latency", "x", 7, 10),
    ]


def test_a_ready_task_behind_a_gap_alone_is_launch() -> None:
    trace = trace_of([Span("a", 0, 5, "gpu:0", gap=4), Span("b", 9, 10, "gpu:0", "a")])
    assert spelled(trace) == [
        ("compute", "a", 0, 5),
        ("launch", "a", 5, 9),
        ("compute", "b", 9, 10),
    ]


def test_waiting_for_a_device_is_compute_and_behind_a_transfer_queueing() -> None:
    trace = trace_of([Span("a", 0, 5, "gpu:0"), Span("b", 5, 7, "gpu:0")])
    assert spelled(trace) == [("compute", "a", 0, 5), ("compute", "b", 5, 7)]
    trace = trace_of([Span("x", 0, 5, "send gpu:0", to=1), Span("y", 5, 7, "send gpu:0", to=1)])
    assert spelled(trace) == [("queueing", "x", 0, 5), ("transfer", "y", 5, 7)]


def test_of_two_holders_the_last_to_finish_counts() -> None:
    x = Span("x", 12, 14, ("send gpu:0", "recv gpu:1"), "a", to=1)
    before = [Span("s", 0, 10, "send gpu:0", to=1, gap=2), Span("r", 0, 12, "recv gpu:1", to=1)]
    path = critical_path(trace_of([Span("a", 0, 3, "gpu:0"), *before, x]))
    assert [(s.blame, s.start_ps, s.finish_ps, s.waiter) for s in path] == [
        ("queueing", 0, 12, 3),
        ("transfer", 12, 14, NOBODY),
    ]


def test_ties_go_to_the_smallest_id() -> None:
    spans = [Span(name, 0, 5, f"gpu:{d}", at=d) for d, name in enumerate("ab")]
    joined = trace_of([*spans, Span("c", 5, 9, "gpu:0", "b a")])
    assert spelled(joined) == [("compute", "a", 0, 5), ("compute", "c", 5, 9)]
    assert spelled(trace_of(spans)) == [("compute", "a", 0, 5)]


def test_nothing_takes_no_time() -> None:
    report = analyze(Outcome(trace_of([])))
    assert (report.step_ps, report.critical_path, report.bubble, report.exposed) == (
        0,
        (),
        0.0,
        0.0,
    )
    assert "Step time 0 ps" in str(report)
    assert analyze(Outcome(trace_of([Span("a", 0, 0, "gpu:0")]))).devices[0].utilization == 0


def check_path(trace: Trace) -> None:
    """Segments tile the step, and waiters are what they claim to be."""
    path, tasks = critical_path(trace), trace.task_graph.tasks
    borders = [0, *(segment.finish_ps for segment in path)]
    assert [segment.start_ps for segment in path] == borders[:-1]
    assert borders[-1] == trace.end_ps
    for segment in path:
        assert segment.blame in BLAMES
        assert segment.duration_ps > 0
        if segment.blame in ("queueing", "launch"):
            waiter = segment.waiter
            assert waiter != NOBODY
            assert set(tasks.resources[waiter]) & set(tasks.resources[segment.task])
            assert trace.finish[segment.task] + tasks.gap[segment.task] == trace.start[waiter]


def longest_chain(task_graph: TaskGraph) -> int:
    """The critical path of dependencies alone."""
    ends = (task_graph.tasks.duration + task_graph.tasks.lag).tolist()
    waiting = task_graph.predecessor_count.tolist()
    begin = [0] * len(ends)
    ready = [task for task, count in enumerate(waiting) if not count]
    while ready:
        task = ready.pop()
        for successor in task_graph.tasks.successors[task].tolist():
            begin[successor] = max(begin[successor], begin[task] + ends[task])
            waiting[successor] -= 1
            ready += [successor] * (not waiting[successor])
    return max((a + b for a, b in zip(begin, ends, strict=True)), default=0)


@given(task_graphs(flows=True))
def test_critical_path_tiles_the_step_of_random_programs(task_graph: TaskGraph) -> None:
    check_path(simulate(task_graph, engine="simpy"))


@given(worlds())
def test_critical_path_tiles_the_step_of_random_worlds(world: World) -> None:
    check_path(world.trace)


@given(worlds())
def test_bounds_of_the_step(world: World) -> None:
    report = analyze(Outcome(world.trace))
    tasks = world.task_graph.tasks
    assert sum(report.blame.values()) == report.step_ps
    assert longest_chain(world.task_graph) <= report.step_ps
    assert report.step_ps <= int(
        (world.trace.finish - world.trace.start + tasks.lag + tasks.gap).sum()
    )
    assert all(use.busy_ps + use.exposed_ps <= report.step_ps for use in report.devices)
    assert all(use.busy_ps <= report.step_ps for use in report.links)
    for use in report.devices:
        assert use.busy_ps + use.exposed_ps + use.bubble_ps == report.step_ps
    assert report.bubble + report.exposed == pytest.approx(report.idle)
    assert 0 <= report.bubble <= report.idle <= 1
    assert sum(use.ops for use in report.devices) + report.transfer_count == len(tasks)


@given(worlds())
def test_rows_hold_every_task_and_never_two_at_once(world: World) -> None:
    rows = timeline_rows(world.trace)
    assert {task for row in rows for task in row.tasks.tolist()} == set(
        range(len(world.task_graph.tasks))
    )
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert (world.trace.finish[row.tasks][:-1] <= world.trace.start[row.tasks][1:]).all()


def test_devices_by_hand() -> None:
    first, second = analyze(Outcome(two_devices())).devices
    assert (first.ops, first.busy_ps, first.utilization) == (2, 18, 18 / 30)
    assert (second.ops, second.busy_ps, second.utilization) == (2, 9, 9 / 30)
    # In flight is [10, 20): gpu:0 idles in [10, 12), gpu:1 all the while.
    assert (first.exposed_ps, second.exposed_ps) == (2, 10)
    assert (first.bubble_ps, second.bubble_ps) == (10, 11)


def test_idle_time_is_exposed_communication_or_bubble() -> None:
    report = analyze(Outcome(two_devices()))
    assert report.idle == pytest.approx(1 - 27 / 60)
    assert (report.exposed, report.bubble) == (pytest.approx(12 / 60), pytest.approx(21 / 60))


def test_links_by_hand() -> None:
    uses = {
        use.name: (use.transfers, use.bytes, use.busy_ps, use.utilization)
        for use in analyze(Outcome(two_devices())).links
    }
    assert uses == {"send gpu:0": (1, 6, 6, 0.2), "recv gpu:1": (1, 6, 6, 0.2)}


def test_flows_are_told_by_link_and_free_transfers_by_their_ends() -> None:
    flows = trace_of(
        [Span("f", 0, 9, to=1, size=6, links=[0], held=3)],
        links=["link gpu:0>gpu:1", "link gpu:1>gpu:0"],
    )
    assert [(use.name, use.transfers, use.busy_ps) for use in analyze(Outcome(flows)).links] == [
        ("link gpu:0>gpu:1", 1, 6),
        ("link gpu:1>gpu:0", 0, 0),
    ]
    free = trace_of([Span("x", 0, 4, to=1, size=6), Span("y", 2, 6, to=1, size=1)])
    assert [(use.name, use.bytes, use.busy_ps) for use in analyze(Outcome(free)).links] == [
        ("gpu:0 -> gpu:1", 7, 6)
    ]


def test_covered_time_is_the_length_of_the_union() -> None:
    start, finish = np.array([5, 0, 1, 20, 20]), np.array([8, 3, 2, 20, 25])
    assert covered_ps(start, finish) == 3 + 3 + 5


def test_json_has_the_fields_of_the_format() -> None:
    report = analyze(Outcome(two_devices([200, 5]), {"measured": 0.75, "roofline": 0.25}))
    found = json.loads(json.dumps(report.to_json()))
    assert (found["step_time_ps"], found["step_time_s"], found["engine"]) == (
        30,
        30 / 1e12,
        "by hand",
    )
    assert (found["feasible"], found["memory_excess_bytes"]) == (False, 4)
    assert found["transfers"] == {"count": 1, "bytes": 6}
    assert found["costs"] == {"measured": 0.75, "roofline": 0.25}
    assert sum(span["finish_ps"] - span["start_ps"] for span in found["critical_path"]) == 30
    device = found["devices"]["gpu:1"]
    assert (device["peak_bytes"], device["capacity_bytes"], device["utilization"]) == (9, 5, 0.3)
    assert device["overflow"]["task"] == "a:0>gpu:1"
    assert device["overflow"]["excess_bytes"] == 1
    assert device["overflow"]["live"] == [{"buffer": "a:0 on gpu:1", "bytes": 6}]
    assert found["devices"]["gpu:0"]["overflow"] is None


def test_require_feasible() -> None:
    report = analyze(Outcome(two_devices()))
    assert report.require_feasible() is report
    with pytest.raises(OutOfMemoryError) as caught:
        analyze(Outcome(two_devices([100, 5]))).require_feasible()
    error = caught.value
    # gpu:0 is over from the start (100 + 6 bytes), gpu:1 only from 10 ps.
    assert (error.device, error.time_ps, error.task) == ("gpu:0", 0, "a")
    assert (error.needed, error.capacity, error.live[0]) == (106, 100, ("weights", 100))


def test_text_says_loudly_whether_it_fits() -> None:
    assert "FITS: no device has a memory limit." in str(analyze(Outcome(two_devices())))
    assert "FITS: every device stays within its memory." in str(
        analyze(Outcome(two_devices([106, 9])))
    )
    text = str(analyze(Outcome(two_devices([106, 5]))))
    assert "DOES NOT FIT: 1 of 2 devices" in text
    assert "gpu:1: 1 bytes (1 B) over at 10 ps, when a:0>gpu:1 starts." in text
    assert "6 B  a:0 on gpu:1" in text


@pytest.mark.parametrize("trace", [two_devices([106, 5]), hostile()], ids=["plain", "hostile"])
def test_text_is_narrow(trace: Trace) -> None:
    assert (
        max(len(line) for line in str(analyze(Outcome(trace, {"measured": 1.0}))).splitlines())
        < 100
    )


def test_devices_that_run_ops_are_never_cut_off() -> None:
    """Behind switches and more devices than there are rows; switches are only counted, and have no
    row in a chart.
    """
    names = [f"gpu:{d}" for d in range(20)] + [f"nic:{d}" for d in range(9)] + ["gpu:99"]
    trace = trace_of([Span("b", 0, 1, "gpu:99", at=29)], names, [1] * 20 + [-1] * 9 + [1])
    lines = str(analyze(Outcome(trace))).splitlines()
    shown = [line.split()[0] for line in lines if line.startswith(("  gpu:", "  nic:"))]
    assert shown == ["gpu:99", *(f"gpu:{d}" for d in range(15))]
    assert "  ... and 14 more" in lines
    assert [row.name for row in timeline_rows(trace)] == [
        name for name in names if "nic" not in name
    ]


def test_without_limits_every_device_has_a_row() -> None:
    trace = trace_of([Span("a", 0, 1, "gpu:0")])
    assert [row.name for row in timeline_rows(trace)] == ["gpu:0", "gpu:1"]
    assert "  gpu:1 " in str(analyze(Outcome(trace)))


def test_html_escapes_names() -> None:
    html = analyze(Outcome(hostile()))._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert HOSTILE[0] in json.dumps(analyze(Outcome(hostile())).to_json())


def test_repr_is_short() -> None:
    assert (
        repr(analyze(Outcome(two_devices())))
        == "Report(3e-11 s, feasible, 2 devices, engine 'by hand')"
    )


def test_a_path_of_a_hundred_thousand_tasks() -> None:
    count = 100_000
    spans = [Span("t0", 0, 2, "gpu:0", lag=1)]
    spans += [
        Span(f"t{i}", 3 * i, 3 * i + 2, f"gpu:{i % 4}", f"t{i - 1}", i % 4, lag=1)
        for i in range(1, count)
    ]
    trace = trace_of(spans, [f"gpu:{d}" for d in range(4)], buffers=[Held("b", 0, 1, "t0", "t5")])
    report: Report = analyze(Outcome(trace))
    assert len(report.critical_path) == 2 * count


def test_a_device_may_bear_the_name_of_a_queue() -> None:
    devices = ("gpu:0", "recv gpu:0")
    trace = trace_of(
        [Span("a", 0, 2, "recv gpu:0", at=1), Span("x", 2, 3, "send gpu:0", "a", to=1)], devices
    )
    assert [(row.name, row.device, row.computes) for row in timeline_rows(trace)] == [
        ("gpu:0", 0, True),
        ("send gpu:0", 0, False),
        ("recv gpu:0", 1, True),
    ]
