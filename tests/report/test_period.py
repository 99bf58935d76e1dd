"""Rule 10: a step is a period, wherever a step time is told; all else is told of one step."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from fractions import Fraction
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simdev import Oracle, Scenario, load_scenario, run, sweep
from simdev.commands import main
from simdev.commands.server.state import ServerState
from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.engine import ENGINES, simulate
from simdev.execution.period import (
    COUNTS,
    SLACK,
    _counts,
    _replays,
    _times_of,
    in_step,
    simulate_strategy,
    steady_rounds,
    steady_state,
)
from simdev.execution.scenario import execute
from simdev.ground.errors import DeadlockError
from simdev.lowering import Prepared, iterated, lower_step
from simdev.nouns.cluster import QUEUES, Cluster, Device, Host
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.models.layers import Layer
from simdev.nouns.strategy import POLICIES, Order, Strategy, Sync, sync_policy
from simdev.nouns.trace import Trace
from simdev.report import Report
from simdev.report.measures.spans import computing_mask
from simdev.report.measures.spread import sent_bytes
from worlds.clusters import machines
from worlds.programs import T, play, remote
from worlds.scenarios import lenet, synchronised
from worlds.server import ask

PS = 10**12


SERVER = {"even_parameters": 1}
ONE = synchronised(
    [Layer(1, 1, 3), Layer(1, 1, 6)], machines(2, "device"), sync_policy("p3", slice_parameters=1)
)
TWO = synchronised(
    [Layer(1, 1, 6), Layer(3, 0, 10)], machines(2, "device"), sync_policy("p3", slice_parameters=3)
)
THREE = synchronised(
    [Layer(1, 3, 54), Layer(3, 3, 8)], machines(3, "device"), sync_policy("p3", slice_parameters=3)
)
FIVE = synchronised(
    [Layer(2, 2, 32)],
    machines(5, "half-duplex"),
    sync_policy("parameter-server", hold="together", **SERVER),
)
NINETEEN = synchronised(
    [Layer(1, 1, 53), Layer(2, 2, 7)],
    machines(4, "half-duplex"),
    sync_policy("parameter-server", aggregation=13, segment=9, **SERVER),
)


def two_devices(first: dict[str, int], second: dict[str, int]) -> Scenario:
    """Ops (their ps) one after another, on a device that waits for no other and on one that is
    sent what the last of them makes.
    """
    ops, times = list[Op](), first | second
    for name, ps in times.items():
        reads = tuple(op.name for op in ops[-1:])
        ops.append(Op(name, inputs=reads, outputs=(Tensor(1),), time=Fraction(ps, PS)))
    cluster = Cluster.all_to_all("two", [Device("a"), Device("b")], "device", bandwidth=PS)
    strategy = Strategy({name: "a" if name in first else "b" for name in times})
    return Scenario(Graph("two", tuple(ops)), cluster, CostModel(), strategy, steps="repeated")


# Of work that piles up before a first-in-first-out queue, the second op waits for ever more firsts.
NEVER = two_devices({"root": 3, "first": 4}, {"second": 4, "third": 6})


def by_brute_force(
    scenario: Scenario, steps: int, most: int, one_shift: bool = False
) -> tuple[int, Fraction]:
    """The smallest cycle of a long run, seen over a quarter of it in the ends of steps and in every
    start, each as much later as it was before (or as all are: ``one_shift``); and the period.
    """
    prepared = Prepared(scenario.graph, scenario.cluster, scenario.costs)
    step = lower_step(prepared, scenario.strategy, True)
    trace = simulate(iterated(step, steps), "compiled")
    graph, counted = trace.task_graph, slice(steps // 4, steps // 2)
    start = graph.by_round(trace.start)[counted]
    ends = graph.by_round(trace.finish + graph.tasks.lag).max(axis=1)[counted]
    slack = 4e-9 * float(ends[-1]) if graph.tasks.flow.any() else 0.0
    for cycle in range(1, most + 1):
        of_tasks, of_steps = start[cycle:] - start[:-cycle], ends[cycle:] - ends[:-cycle]
        of_tasks = of_tasks.reshape(-1) if one_shift else of_tasks
        if all((np.abs(each - each[0]) <= slack).all() for each in (of_tasks, of_steps)):
            return cycle, Fraction(int(ends[-1] - ends[-1 - cycle]), cycle)
    return 0, Fraction(0)


@pytest.mark.parametrize(
    ("scenario", "cycle"), [(ONE, 1), (TWO, 2), (THREE, 3), (FIVE, 5), (NINETEEN, 19)]
)
def test_steps_repeat_after_one_two_and_more(scenario: Scenario, cycle: int) -> None:
    report = run(scenario)
    assert report.steady is not None
    assert report.steady.cycle == cycle
    assert by_brute_force(scenario, 200, 20) == (cycle, report.steady.period_ps)
    assert report.step_ps == ceil(report.steady.period_ps)
    assert check(report.trace.task_graph, report.trace) == ()


def test_of_steps_that_never_repeat_the_mean_of_the_later_half_is_marked() -> None:
    report = run(NEVER)
    steady = report.steady
    assert steady is not None
    assert (steady.cycle, steady.steps) == (0, COUNTS[-1])
    assert "NOT STEADY" in str(report)
    trace = report.trace
    ends = (trace.finish + trace.task_graph.tasks.lag).reshape(steady.steps, -1).max(axis=1)[:-1]
    later = np.diff(ends)[len(ends) // 2 :].tolist()
    assert report.step_ps == ceil(Fraction(sum(later), len(later)))
    assert by_brute_force(NEVER, 400, 50) == (0, 0)


SECONDS, PARAMETERS = st.integers(0, 4), st.integers(1, 40)
LAYERS = st.lists(st.builds(Layer, SECONDS, SECONDS, PARAMETERS), min_size=1, max_size=4)
SYNCS = st.one_of(
    st.builds(lambda n: sync_policy("p3", slice_parameters=n), st.integers(2, 9)),
    st.builds(lambda n: sync_policy("parameter-server", even_parameters=n), st.integers(1, 30)),
    st.builds(lambda n: sync_policy("bucketed", bucket=n), st.integers(20, 200)),
    st.builds(
        lambda n: sync_policy("sliced", slice_parameters=5, aggregation=n), st.integers(4, 13)
    ),
)


@settings(max_examples=25, deadline=None)
@given(LAYERS, st.integers(2, 4), st.sampled_from(["device", "half-duplex", "egress"]), SYNCS)
@example([Layer(1, 3, 54), Layer(3, 3, 8)], 3, "device", sync_policy("p3", slice_parameters=3))
def test_what_is_said_to_repeat_does_so_for_ever(
    layers: list[Layer], workers: int, queues: str, sync: Sync
) -> None:
    """The state is compared, so a run of more steps goes on as told, with no smaller cycle."""
    scenario = synchronised(layers, machines(workers, queues), sync)
    report = run(scenario)
    steady = report.steady
    assert steady is not None
    if steady.repeats:
        told = by_brute_force(scenario, 4 * steady.steps + 12 * steady.cycle, steady.cycle)
        assert told == (steady.cycle, steady.period_ps)
    told_of_one_step(report)


def random_steps(seed: int) -> Scenario:
    """Ops at random on up to three devices, under any queues, some with hosts."""
    draw, unit = random.Random(seed), Fraction(1, PS)
    hosted = not draw.randrange(4)
    # Hosts that are a little faster than their devices get ahead for thousands of steps.
    top = 6 if hosted else draw.choice((6, 1000))
    ops = [
        Op(
            f"op{i}",
            inputs=tuple(
                f"op{j}" for j in sorted(draw.sample(range(i), min(i, draw.randint(0, 2))))
            ),
            outputs=(Tensor(draw.choice((0, 1, 5, top))),),
            time=draw.randint(0, top) * unit,
            host_time=draw.randint(0, top) * unit,
        )
        for i in range(draw.randint(1, 9))
    ]
    devices = [Device(f"gpu:{d}") for d in range(draw.randint(1, 3))]
    latency = draw.choice((0, 3)) * unit
    queues = draw.choice(QUEUES)
    cluster = Cluster.all_to_all("random", devices, queues, bandwidth=PS, latency=latency)
    if hosted:
        threads = draw.choice(("device", "node"))
        host = Host(draw.choice(("eager", "graph")), draw.randint(1, 20), threads, 2 * unit)
        cluster = replace(cluster, host=host)
    placement = {op.name: draw.choice(devices).name for op in ops}
    order = draw.choice([policy for policy in POLICIES if policy != "fixed"])
    ranks = {op.name: draw.randint(0, 3) for op in ops} if order == "priority" else {}
    strategy = Strategy(placement, Order(order, ranks))
    return Scenario(
        Graph("random", tuple(ops)), cluster, CostModel(), strategy, "compiled", steps="repeated"
    )


@settings(max_examples=160, deadline=None)
@given(st.integers(0, 10**9))
@example(561)  # what is fed by a device takes longer, and ends before it in the first steps
@example(355)  # these tell apart most of the ways in which repetition may be judged wrongly
@example(546)
@example(1113)
@example(36)
@example(1818)
def test_steps_repeat_where_every_task_keeps_its_pace(seed: int) -> None:
    """A device that waits for no other may run ahead at a pace of its own: the step is the slowest
    pace, exactly, with the smallest cycle, and figures are those of one step.
    """
    scenario = random_steps(seed)
    try:
        report = run(scenario)
    except DeadlockError:
        return
    steady = report.steady
    assert steady is not None
    count = max(200, 5 * steady.steps)
    if steady.repeats:
        told = by_brute_force(scenario, count, 30)
        assert (steady.cycle, steady.period_ps) == told
        told_of_one_step(report)
    else:
        # Where work piles up in queues a run of any number of steps tells nothing of endless ones.
        assert by_brute_force(scenario, count, 30, one_shift=True) == (0, 0)


def test_a_device_that_waits_for_no_other_runs_ahead() -> None:
    """Steps of 7 ps feed steps of 10 ps: the step takes 10, of which the first device works 7."""
    scenario = two_devices({"root": 3, "first": 4}, {"second": 10})
    report = run(scenario)
    assert report.steady is not None
    assert (report.steady.cycle, report.steady.period_ps, report.steady.steps) == (1, 10, 4)
    assert [device.utilization for device in report.devices] == [0.7, 1.0]
    assert "NOT STEADY" not in str(report)


def trace_of_lines(lines: list[list[int]]) -> Trace:
    """Each op has a device of its own but for the first of a line, which takes no time, as
    transfers do.
    """
    ops, placement = list[Op](), dict[str, str]()
    for line, times in enumerate(lines):
        for at, ps in enumerate((0, *times)):
            reads = (f"{line}/{at - 1}",) if at else ()
            time = Fraction(ps, PS)
            ops.append(Op(f"{line}/{at}", inputs=reads, outputs=(Tensor(0),), time=time))
            placement[ops[-1].name] = f"{line}/{max(at, 1)}"
    cluster = Cluster.all_to_all(
        "lines",
        [Device(name) for name in dict.fromkeys(placement.values())],
        "parallel",
        bandwidth=PS,
    )
    prepared = Prepared(Graph("lines", tuple(ops)), cluster, CostModel())
    return simulate_strategy(prepared, Strategy(placement), "compiled", "repeated")[0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=3), min_size=1, max_size=3))
@example([[0]])
@example([[10], [8, 5]])  # the second line ends last in the first two steps alone
@example([[9], [10, 1], [7, 12]])
def test_lines_of_devices_repeat_at_the_pace_of_the_slowest(lines: list[list[int]]) -> None:
    trace = trace_of_lines(lines)
    steady = steady_state(trace)
    assert steady is not None
    if steady.repeats:
        assert (steady.cycle, steady.period_ps) == (1, max(map(max, lines)))


def told_of_one_step(report: Report) -> None:
    """The parts of a step add up to it, and what is counted is that of one step of many."""
    assert sum(report.blame.values()) == report.step_ps
    begins = [segment.start_ps for segment in report.critical_path]
    ends = [segment.finish_ps for segment in report.critical_path]
    window = report.window
    if window.length_ps:
        assert [*begins, window.end_ps] == [window.begin_ps, *ends]
    graph, steps = report.trace.task_graph, report.trace.task_graph.steps
    one = graph.by_round(np.arange(len(graph.tasks)))[0]
    one = one[computing_mask(graph)[one]]
    for index, device in enumerate(report.devices):
        here = one[graph.tasks.source[one] == index]
        assert device.ops == len(here)
        if report.steady is not None and report.steady.repeats:
            assert device.busy_ps == graph.tasks.duration[here].sum()
    assert report.transfer_bytes * steps == sent_bytes(graph)


@pytest.mark.parametrize("scenario", [ONE, TWO, THREE, FIVE, NEVER])
def test_all_is_told_of_one_step(scenario: Scenario) -> None:
    report = run(scenario)
    told_of_one_step(report)
    found = report.to_json()
    assert found["trace_s"] == report.trace.end_ps / PS > found["step_time_s"]
    assert found["first_step_s"] == report.steady.first_ps / PS  # type: ignore[union-attr]
    later = [period / PS for period in report.steady.later_ps]  # type: ignore[union-attr]
    assert (found["period_min_s"], found["period_max_s"]) == (min(later), max(later))
    assert found["blame_s"].keys() == report.blame.keys()
    assert max(device.memory.peak for device in report.devices) > 0


# The row of the issue: LeNet under P3 had three answers.


LENET = lenet("p3-4x-p4000", 64, sync={"policy": "p3"})
STEP_PS, FIRST_PS = 1_874_823_489, 2_145_602_948


def test_every_door_tells_the_period(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = load_scenario(LENET)
    report = run(scenario)
    assert report.step_ps == STEP_PS
    oracle = Oracle(scenario.graph, scenario.cluster, scenario.costs)
    cost = oracle(scenario.strategy)
    assert (cost.step_ps, cost.seconds) == (STEP_PS, STEP_PS / PS)
    path = tmp_path / "lenet.json"
    path.write_text(json.dumps(LENET))
    assert main(["simulate", str(path), "--json", "--save", str(tmp_path / "run.json")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step_time_ps"], told["cycle"]) == (STEP_PS, 1)
    assert told["first_step_s"] == FIRST_PS / PS
    assert "period_s" not in told
    rows = sweep([str(path)], progress=False)
    assert rows["step_time_ps"].tolist() == [STEP_PS]
    assert rows["first_step_s"].tolist() == [FIRST_PS / PS]
    state = ServerState()
    loaded = ask(state, "load", scenario=LENET)["scenario"]
    assert ask(state, "score", scenario=loaded)["step_ps"] == STEP_PS
    assert ask(state, "trace", scenario=loaded)["step_time_ps"] == STEP_PS
    assert main(["compare", str(path), str(tmp_path / "run.json")]) == 0
    assert "takes as long as" in capsys.readouterr().out


def test_a_saved_run_knows_its_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_text(json.dumps(LENET))
    saved = tmp_path / "run.json"
    assert main(["simulate", str(tmp_path / "s.json"), "--save", str(saved)]) == 0
    told = json.loads(saved.read_text())
    assert (told["steps"], told["trace_ps"], "step_time_ps" in told) == (8, 15_269_367_371, False)
    capsys.readouterr()
    assert main(["check", str(saved)]) == 0
    assert "8 steps 0.0152693674 s" in capsys.readouterr().out
    saved.write_text(json.dumps(told | {"trace_ps": STEP_PS}))
    assert main(["check", str(saved)]) == 3
    assert f"the last release is said to be at {STEP_PS} ps" in capsys.readouterr().out
    saved.write_text(json.dumps(told | {"steps": 7}))
    assert main(["check", str(saved)]) == 2
    assert "steps: " in capsys.readouterr().err


def test_a_sweep_ranks_policies_by_their_period() -> None:
    rows = sweep(LENET, {"strategy.sync.policy": ["parameter-server", "p3"]}, progress=False)
    first, step = rows["first_step_s"].tolist(), rows["step_time_s"].tolist()
    for policy, seconds in zip(("parameter-server", "p3"), step, strict=True):
        strategy = LENET["strategy"] | {"sync": {"policy": policy}}
        assert run(load_scenario(LENET | {"strategy": strategy})).seconds == seconds
    assert all(period < alone for period, alone in zip(step, first, strict=True))


def test_engines_agree_on_the_period() -> None:
    reports = [run(replace(TWO, engine=engine)) for engine in ENGINES]
    assert reports[0].to_json() | {"engine": ""} == reports[1].to_json() | {"engine": ""}
    assert steady_state(execute(TWO).trace) == reports[0].steady


@pytest.mark.parametrize("scenario", [ONE, TWO, THREE, FIVE], ids=["one", "two", "three", "five"])
def test_steps_of_a_short_run_count_as_far_as_no_later_step_could_disturb_them(
    scenario: Scenario,
) -> None:
    """Counted are exactly the steps that end, in a run of many more, before the first step begins
    that the short run does not have.
    """
    prepared = Prepared(scenario.graph, scenario.cluster, scenario.costs)
    step = lower_step(prepared, scenario.strategy)
    traces = {n: simulate(iterated(step, n), "compiled") for n in (2, 3, 8, 13, 16, 40)}
    assert steady_state(traces[2]) is None
    assert steady_state(traces[3]) is not None
    many = traces.pop(40)
    begins = many.start.reshape(40, -1).min(axis=1)
    ends = (many.finish + many.task_graph.tasks.lag).reshape(40, -1).max(axis=1)
    for n in (8, 13, 16):
        steady = steady_state(traces[n])
        assert steady is not None
        if steady.repeats:
            whole = int((ends[:n] <= begins[n]).sum())
            assert steady.first_ps == ends[0]
            assert steady.periods_ps == tuple(np.diff(ends[:whole]).tolist())


def test_times_of_tasks_worked_out_by_hand() -> None:
    """c waits in a fixed queue alone, so it is ready at its turn; b holds another queue too."""
    tasks = [
        T("a", 2, "q", lag=1, gap=3),
        T("b", 2, "q f", "a"),
        T("c", 1, "f", "a", lag=4, gap=1),
        T("d", 1, (), "c"),
    ]
    (ready, start, finish, release, free), slack = _times_of(play(tasks, sequence={"f": "b c"}))
    assert start.tolist() == [0, 5, 7, 12]
    assert finish.tolist() == [2, 7, 8, 13]
    assert ready.tolist() == [0, 3, 7, 12]
    assert release.tolist() == [3, 7, 12, 13]
    assert free.tolist() == [5, 7, 12, 13]
    assert slack == 0.0
    assert _times_of(remote("fair").trace)[1] == SLACK


def test_the_slowest_stay_where_they_are_and_others_end_with_their_steps() -> None:
    """A line of 10 ps beside one of 8 and 5, which ends last in the first two steps."""
    trace = trace_of_lines([[10], [8, 5], [0]])
    moved, graph = in_step(trace, steady_state(trace)), trace.task_graph
    finish = {
        name: graph.by_round(moved.finish)[:, row].tolist()
        for row, name in enumerate(graph.tasks.name[: len(graph.tasks) // graph.rounds])
    }
    steps = range(1, graph.steps + 1)
    assert finish["0/1"] == [10 * step for step in steps]
    ends = [max(10 * step, 8 * step + 5) for step in steps]
    assert finish["1/2"][:-1] == finish["2/1"][:-1] == ends[:-1]


def test_rounds_of_a_program_worked_out_by_hand() -> None:
    names = [f"{op}{k}" for k in range(5) for op in "ab"]
    tasks = [T(n, 3, "s") if n[0] == "a" else T(n, 2, "t", f"a{n[1]}") for n in names]
    trace = play(tasks, sequence={"s": " ".join(names[::2]), "t": " ".join(names[1::2])})
    steady = steady_rounds(trace, np.arange(10).reshape(5, 2))
    assert steady is not None
    assert (steady.first_ps, steady.periods_ps, steady.cycle) == (5, (3,) * 4, 1)


def test_replays_of_graphs_are_known_by_their_names() -> None:
    assert _replays("dispatch graph@g", "g", False)
    assert _replays("dispatch graph@g~2", "g", True)
    assert not _replays("dispatch graph@g~2", "g", False)
    assert not _replays("dispatch a", "g", True)


def test_as_many_steps_are_simulated_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    step = lower_step(Prepared(ONE.graph, ONE.cluster, ONE.costs), ONE.strategy, True)
    for most, counts in ((16, COUNTS[:3]), (15, COUNTS[:2]), (1, COUNTS[:1])):
        monkeypatch.setattr("simdev.execution.period.most_rounds", lambda _, most=most: most)
        assert tuple(_counts(step)) == counts


def test_a_host_that_dispatches_a_single_op_gets_ahead_no_further_than_it_may() -> None:
    """Steps count as repeated once the host is as far ahead as it may be: 6 launches."""
    scenario = two_devices({"a": 5}, {})
    op = replace(scenario.graph.ops[0], host_time=Fraction(1, PS))  # type: ignore[union-attr]
    cluster = replace(scenario.cluster, host=Host(ahead=6))
    report = run(replace(scenario, graph=Graph("one", (op,)), cluster=cluster))
    assert report.steady is not None
    assert (report.steady.cycle, report.steady.period_ps) == (1, 5)
    assert report.steady.steps > 6
