"""Noise, pauses and whom a step waits for: beside order statistics, brute force and the checker."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gamma
from scipy.stats import lognorm

from simdev import Cluster, Device, Graph, InputError, Scenario, Strategy, load_scenario, run
from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.disturbances import noise, with_stalls
from simdev.execution.scenario import execute, lowered
from simdev.files.run import read_run, write_run
from simdev.lowering import iterated
from simdev.nouns.cluster import Host
from simdev.nouns.disturbances import Disturbances, Pauses
from simdev.nouns.graph import Op, Tensor
from simdev.nouns.taskgraph import Stalls
from simdev.report.measures.disturbed import Disturbed, waits_for
from simdev.report.page import Subject, run_data
from simdev.report.whatif import what_ifs
from simdev.search.sweep import sweep

MS = 10**9
LARGE: dict[str, Any] = {
    "version": 1,
    "graph": {"model": "gpt-1.7b", "layers": 4, "length": 512},
    "cluster": "dgx-h100",
    "strategy": {"pipeline": {"dp": 4, "tp": 2, "microbatches": 4, "microbatch": 2}},
}
SMALL: dict[str, Any] = {
    "version": 1,
    "graph": {"model": "lenet", "batch": 64},
    "cluster": "c4140-4x-v100",
    "strategy": "data-parallel",
}


def ranks(times: list[str], ops: int = 1, **fields: Any) -> Scenario:
    """Ops one after another on each of some devices, and an all_reduce behind all of them."""
    count = len(times)
    devices = [Device(f"g{d}") for d in range(count)]
    cluster = Cluster.all_to_all("ranks", devices, bandwidth="1 GB/s")
    every, placement = list[Op](), {"sum": "g0"}
    for d, time in enumerate(times):
        for k in range(ops):
            inputs = (f"work{d}.{k - 1}",) if k else ()
            name, outputs = f"work{d}.{k}", (Tensor(0),)
            every.append(Op(name, "work", inputs=inputs, outputs=outputs, time=time, **fields))
            placement[name] = f"g{d}"
    attrs = {"ranks": [device.name for device in devices]}
    last = tuple(f"work{d}.{ops - 1}" for d in range(count))
    every.append(Op("sum", "all_reduce", inputs=last, outputs=(Tensor(0),) * count, attrs=attrs))
    return Scenario(Graph("ranks", tuple(every)), cluster, CostModel(()), Strategy(placement))


def mean_step(scenario: Scenario, disturbances: Disturbances, draws: int = 4000) -> float:
    drawn = run(replace(scenario, disturbances=disturbances), draws=draws).outcome.draws
    assert drawn is not None
    return float(drawn.step_ps.mean()) / (10 * MS)


def test_noise_of_flows_changes_times_and_not_bytes(tmp_path: Path) -> None:
    """Flows on fair links have no duration: noise changes how long they keep their links busy."""
    devices = [Device("g0"), Device("g1")]
    cluster = Cluster.all_to_all("pair", devices, "fair", bandwidth="1 GB/s")
    ops = (
        Op("a", outputs=(Tensor(10**6),), time=0),
        Op("b", inputs=("a",), outputs=(Tensor(10**6),), time=0),
    )
    strategy = Strategy({"a": "g0", "b": "g1"})
    even = Scenario(Graph("pair", ops), cluster, CostModel(()), strategy, engine="simpy")
    noisy = replace(even, disturbances=Disturbances(communication=0.2, seed=1))
    trace = execute(noisy).trace
    factor = noise(noisy.disturbances)(lowered(even).step.task_graph)(0)[-1]
    assert execute(even).trace.end_ps == MS
    assert trace.end_ps == pytest.approx(MS * factor, rel=1e-6)
    assert trace.end_ps != MS
    assert trace.task_graph.tasks.bytes.max() == 10**6
    assert execute(replace(noisy, engine="compiled")).trace.end_ps == trace.end_ps
    write_run(trace, tmp_path / "run.json")
    for judged in (trace, read_run(tmp_path / "run.json").trace):
        assert not check(judged.task_graph, judged)


def test_exponential_ops_wait_for_their_expected_maximum() -> None:
    """The mean of the largest of n exponential times is the n-th harmonic number (Renyi 1953)."""
    for count in (2, 6):
        mean = mean_step(ranks(["10 ms"] * count), Disturbances(compute=1, tail="gamma"))
        assert mean == pytest.approx(math.fsum(1 / k for k in range(1, count + 1)), rel=0.03)


def test_lognormal_ops_wait_for_their_expected_maximum() -> None:
    sigma = math.sqrt(math.log(1 + 0.5**2))
    law = lognorm(sigma, scale=math.exp(-sigma * sigma / 2))
    expected, _ = quad(lambda x: 1 - law.cdf(x) ** 5, 0, 50, limit=200)
    mean = mean_step(ranks(["10 ms"] * 5), Disturbances(compute=0.5))
    assert mean == pytest.approx(expected, rel=0.02)


def test_pareto_ops_wait_for_their_expected_maximum() -> None:
    """The largest of n Pareto times has the mean x n! Gamma(1 - 1/a) / Gamma(n + 1 - 1/a)."""
    index, count = 1 + math.sqrt(1 + 1 / 0.3**2), 4
    least = (index - 1) / index
    expected = least * math.factorial(count) * gamma(1 - 1 / index)
    expected /= gamma(count + 1 - 1 / index)
    mean = mean_step(ranks(["10 ms"] * count), Disturbances(compute=0.3, tail="pareto"))
    assert mean == pytest.approx(expected, rel=0.02)


def test_slow_devices_by_chance_slow_all_their_ops() -> None:
    scenario = replace(ranks(["1 ms"] * 3, ops=10), disturbances=Disturbances(devices=0.2))
    trace = execute(scenario).trace
    lengths = (trace.finish - trace.start)[:30].reshape(3, 10)
    assert (lengths == lengths[:, :1]).all()
    assert len(np.unique(lengths[:, 0])) == 3


@pytest.mark.parametrize("tail", ["lognormal", "gamma", "pareto"])
def test_noise_keeps_the_mean_and_has_its_spread(tail: str) -> None:
    scenario = ranks(["1 ms"] * 4, ops=5000)
    graph = lowered(scenario).step.task_graph
    factors = noise(Disturbances(compute=0.2, tail=tail))(graph)(0)[:20_000]
    assert factors.mean() == pytest.approx(1, rel=0.01)
    assert factors.std() == pytest.approx(0.2, rel=0.1)
    assert noise(Disturbances())(graph)(0) == pytest.approx(1, abs=0)


def test_the_first_of_several_steps_has_the_noise_that_it_has_alone() -> None:
    question = lowered(replace(load_scenario(SMALL), steps="repeated"))
    rule = noise(Disturbances(compute=0.1, communication=0.2))
    once, thrice = (rule(iterated(question.step, rounds))(0) for rounds in (1, 3))
    assert (once == thrice[: len(once)]).all()
    assert (thrice[: len(once)] != thrice[len(once) : 2 * len(once)]).any()


def test_work_rests_in_pauses() -> None:
    """Beside a clock that ticks picosecond by picosecond."""
    draw = Random(5)
    for _ in range(3000):
        every = draw.randint(2, 12)
        lasts, begins = draw.randint(1, every - 1), draw.randint(-every, every)
        start, work = draw.randint(0, 40), draw.randint(1, 30)
        now, left = start, work
        while left:
            left -= now < begins or (now - begins) % every >= lasts
            now += 1
        stalls = Stalls(np.array([begins]), every, lasts, np.array([True]))
        columns = (np.array([value]) for value in (start, work, 0))
        assert stalls.finish(*columns)[0] == now


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_a_device_does_as_much_work_as_its_pauses_leave(engine: str) -> None:
    pauses = Pauses("7 ms", "2 ms")
    scenario = ranks(["1.3 ms"] * 3, ops=20)
    scenario = replace(scenario, engine=engine, disturbances=Disturbances(pauses=pauses, seed=4))
    trace = execute(scenario).trace
    assert scenario.disturbances is not None
    stalls = with_stalls(lowered(scenario).step.task_graph, scenario.disturbances, 0).stalls
    assert stalls is not None
    ends = stalls.finish(np.zeros(3, np.int64), np.full(3, 26 * MS), np.arange(3))
    assert trace.finish[:60].reshape(3, 20)[:, -1].tolist() == ends.tolist()
    assert trace.end_ps == ends.max()
    assert not check(trace.task_graph, trace)


@pytest.mark.parametrize("question", [SMALL, LARGE])
@pytest.mark.parametrize("together", [False, True])
def test_pauses_are_kept_by_both_engines_and_the_checker(
    question: dict[str, Any], together: bool
) -> None:
    scenario = load_scenario(question)
    step_ps = execute(scenario).trace.end_ps
    every, lasts = step_ps * 10**-12 / 5, step_ps * 10**-12 / 50
    disturbances = Disturbances(pauses=Pauses(every, lasts, together), compute=0.1)
    scenario = replace(scenario, disturbances=disturbances)
    first, second = (execute(replace(scenario, engine=e)).trace for e in ("simpy", "compiled"))
    assert (first.start == second.start).all()
    assert (first.finish == second.finish).all()
    assert not check(first.task_graph, first)
    assert first.end_ps > step_ps
    graph = lowered(scenario)._disturbed(1)
    assert graph.stalls is not None
    lasting = first.task_graph.tasks.duration
    computes = graph.tasks.duration != lasting
    assert computes.any()
    rows = np.flatnonzero(~graph.of_kind("transfer", "collective", "sync"))
    ends = graph.stalls.finish(
        first.start[rows], graph.tasks.duration[rows], graph.tasks.source[rows]
    )
    is_work = graph.tasks.duration[rows] > 0
    assert (ends[is_work] == first.finish[rows][is_work]).all()


def test_where_a_host_dispatches_its_program_pauses() -> None:
    """Kernels that were launched go on; an op whose dispatch rests begins later."""
    scenario = ranks(["1 ms"] * 2, ops=30, host_time="0.9 ms")
    cluster = replace(scenario.cluster, host=Host())
    pauses = Pauses("10 ms", "3 ms")
    scenario = replace(scenario, cluster=cluster, disturbances=Disturbances(pauses=pauses))
    trace, graph = execute(scenario).trace, lowered(scenario)._disturbed(1)
    longer = trace.task_graph.tasks.duration > graph.tasks.duration
    assert {graph.tasks.kind[task] for task in np.flatnonzero(longer).tolist()} == {"dispatch"}
    assert not check(trace.task_graph, trace)


def test_pauses_at_once_cost_less_than_pauses_by_turns() -> None:
    """Of n ranks that pause by turns a step of many collectives waits for each of them."""
    steps = []
    for together in (True, False):
        pauses = Pauses("100 ms", "5 ms", together=together)
        question = LARGE | {"strategy": {"pipeline": {"dp": 8, "zero": 3, "microbatches": 8}}}
        scenario = replace(load_scenario(question), disturbances=Disturbances(pauses=pauses))
        drawn = run(scenario, draws=20).outcome.draws
        assert drawn is not None
        steps.append(drawn.step_ps.mean())
    assert steps[0] < steps[1]


def test_devices_that_are_named_pause_alone() -> None:
    pauses = Pauses("5 ms", "1 ms", devices=("g1",))
    scenario = replace(ranks(["20 ms"] * 3), disturbances=Disturbances(pauses=pauses))
    trace = execute(scenario).trace
    assert [ps == 20 * MS for ps in trace.finish[:3].tolist()] == [True, False, True]


def test_a_step_waits_for_the_last_of_its_collectives() -> None:
    last_at, held = waits_for(execute(ranks(["3 ms", "10 ms", "7 ms"])).trace)
    assert last_at.tolist() == [0, 1, 0]
    assert held.tolist() == [0, 3 * MS, 0]
    assert not waits_for(execute(ranks(["3 ms", "3 ms"])).trace)[0].any()


def test_the_report_tells_the_step_without_disturbances() -> None:
    even = run(LARGE)
    assert even.get(Disturbed) is None
    for disturbed in (
        {"disturbances": {"compute": 0.05, "seed": 2}},
        {"cluster": {"preset": "dgx-h100", "slow": {"gpu:3": 0.8}}},
    ):
        report = run(LARGE | disturbed)
        section = report.get(Disturbed)
        assert section is not None
        assert section.undisturbed_ps == even.step_ps
        figures = report.to_json()["disturbed"]
        assert figures["longer"] == pytest.approx(report.step_ps / even.step_ps - 1)
        assert figures["waits_for"]
        assert "Disturbed: +" in str(report)
    assert section.waits[0][0] == "gpu:3"


def test_a_seed_gives_a_step_and_draws_give_others() -> None:
    question = LARGE | {"disturbances": {"compute": 0.05, "pauses": {"every": 1, "lasts": "1 ms"}}}
    first, again = run(question, draws=8), run(question, draws=8)
    assert first.step_ps == again.step_ps
    draws, same = first.outcome.draws, again.outcome.draws
    assert draws is not None
    assert same is not None
    assert draws.answer_ps == first.step_ps
    assert (draws.step_ps == same.step_ps).all()
    assert len(set(draws.step_ps.tolist())) == 8
    other = question | {"disturbances": question["disturbances"] | {"seed": 1}}
    assert run(other).step_ps != first.step_ps


def test_what_ifs_are_of_the_undisturbed_step() -> None:
    scenario = load_scenario(SMALL)
    noisy = replace(scenario, disturbances=Disturbances(compute=0.2))
    assert what_ifs(run(noisy), None, noisy) == what_ifs(run(scenario), None, scenario)
    data = run_data(Subject("noisy", run(noisy), noisy), what_ifs(run(noisy), None, noisy))
    assert any("undisturbed" in fact for fact, _ in data["facts"])


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"compute": -0.1}, "disturbances.compute: must be from 0 to 10, got -0.1"),
        ({"tail": "cauchy"}, "disturbances.tail: must be one of lognormal, gamma, pareto"),
        ({"pauses": {"every": "1 s"}}, "disturbances.pauses.lasts: missing"),
        ({"pauses": {"every": 1, "lasts": 2}}, "disturbances.pauses.lasts: must be > 0 and less"),
        (
            {"pauses": {"every": 1e-13, "lasts": 1e-14}},
            "disturbances.pauses.lasts: must be > 0 and less",
        ),
        (
            {"pauses": {"every": "54 d", "lasts": 1}},
            "disturbances.pauses.every: is larger than 53 days",
        ),
        (
            {"pauses": {"every": 2, "lasts": 1, "devices": ["gpu:99"]}},
            'disturbances.pauses.devices[0]: no device named "gpu:99"',
        ),
        ({"seed": -1}, "disturbances.seed: must be a whole number from 0 on, got -1"),
    ],
)
def test_impossible_disturbances_are_told(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(LARGE | {"disturbances": fields})
    assert str(caught.value).startswith(problem)


def test_a_sweep_disturbs_more_and_more() -> None:
    table = sweep(LARGE, {"disturbances.compute": [0, 0.1, 0.3]})
    assert table["step_time_s"].is_monotonic_increasing
