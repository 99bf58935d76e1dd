"""Draws of errors: closed forms of chains, the same bits wherever they are made, and all kinds of
scenarios, whose draws without errors are the answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from math import erf, exp, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev import (
    Cluster,
    CostModel,
    Device,
    Graph,
    InputError,
    Op,
    Scenario,
    Strategy,
    load_scenario,
    run,
)
from simdev.costs.drawn import SHARED, ErrorSource, drawn_factors, normals, sigma_of
from simdev.execution.engine import simulate
from simdev.execution.factors import Factors, with_factors
from simdev.execution.scenario import lowered
from simdev.ground.errors import DeadlockError
from simdev.nouns.cluster import QUEUES, TRANSFERS
from simdev.nouns.draws import are_tied, stability
from simdev.nouns.taskgraph import TaskGraph
from simdev.oracle.draws import draws_of
from simdev.oracle.redrawn import Redrawn
from worlds.costs import row_of
from worlds.graphs import leaf, tensor
from worlds.scenarios import World, make_world
from worlds.tape import drawn
from worlds.task_graphs import task_graphs

OPS, MS = 16, 10**9


def chained(error: float, shapes: int = OPS, ns: int = 10**6) -> Scenario:
    """A chain of ops of 1 ms, each estimated with this error; of ``shapes`` different costs."""
    ops, rows, before = list[Op](), {}, ""
    for i in range(OPS):
        size = 8 + i % shapes
        after = {"control_inputs": (before,)} if i else {}
        made = (tensor(size),)
        ops += leaf(f"x{i}", size), Op(f"o{i}", "relu", inputs=(f"x{i}",), outputs=made, **after)
        before = f"o{i}"
        rows[size] = row_of("relu", [[size]], [[size]], ns, src="fitted", rel_err=error)
    costs = CostModel({"header": {}, "rows": list(rows.values())})
    cluster = Cluster("one", (Device("gpu:0", kind="gpu"),))
    return Scenario(
        Graph("chain", tuple(ops)),
        cluster,
        costs,
        Strategy(dict.fromkeys((op.name for op in ops), "gpu:0")),
    )


@pytest.mark.parametrize("error", [0.01, 0.12, 0.5, 1.0, 3.0])
def test_the_mean_error_of_draws_is_the_error_that_was_told(error: float) -> None:
    sigma = sigma_of(error)
    assert exp(sigma**2 / 2) * erf(sigma / sqrt(2)) == pytest.approx(error, rel=1e-12)
    factors = drawn_factors([ErrorSource("c", "o", error)], 0, 100_000)[:, 0]
    assert np.median(factors) == pytest.approx(1, abs=0.02)
    if error <= 1:
        assert np.abs(factors - 1).mean() == pytest.approx(error, rel=0.03)


def test_normals_are_standard_and_their_own_for_each_name() -> None:
    one, other = normals(["a", "b"], 7, 50_000)
    for row in one, other:
        assert (row.mean(), row.std()) == (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))
        assert (row < 1.2816).mean() == pytest.approx(0.9, abs=0.01)
    assert np.corrcoef(one, other)[0, 1] == pytest.approx(0, abs=0.02)
    # The first draws of many are those of few, and others beside it change nothing.
    assert (normals(["b"], 7, 100)[0] == other[:100]).all()
    assert (normals(["b"], 8, 100)[0] != other[:100]).all()


def test_costs_of_one_class_share_a_part_of_their_error() -> None:
    sources = [ErrorSource("c", "a", 0.2), ErrorSource("c", "b", 0.2), ErrorSource("d", "e", 0.2)]
    factors = np.log(drawn_factors(sources, 0, 50_000))
    correlation = np.corrcoef(factors.T)
    assert correlation[0, 1] == pytest.approx(SHARED, abs=0.02)
    assert correlation[0, 2] == pytest.approx(0, abs=0.02)


def test_a_chain_of_independent_ops_has_the_moments_of_the_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drawn_factors, "__defaults__", (0.0,))
    sigma = sigma_of(0.3)
    mean, variance = exp(sigma**2 / 2), (exp(sigma**2) - 1) * exp(sigma**2)
    factors = run(chained(0.3), draws=20_000).draws.step_ps / MS
    assert factors.mean() == pytest.approx(OPS * mean, rel=0.01)
    assert factors.var() == pytest.approx(OPS * variance, rel=0.05)


def test_ops_of_one_cost_err_together() -> None:
    sigma, draws = sigma_of(0.3), run(chained(0.3, shapes=1), draws=2_000).draws
    assert draws is not None
    assert draws.answer_ps == OPS * MS
    single = drawn_factors([next(iter(sources(chained(0.3, shapes=1))))], 0, 2_000)[:, 0]
    # Each op is rounded up to a picosecond.
    assert (np.abs(draws.step_ps - OPS * MS * single) <= OPS).all()
    assert np.log(draws.step_ps / draws.answer_ps).std() == pytest.approx(sigma, rel=0.05)


def sources(scenario: Scenario) -> tuple[ErrorSource, ...]:
    question = lowered(scenario)
    return question.expected_errors(question.step.task_graph).sources


def test_every_draw_of_exact_costs_is_the_answer() -> None:
    draws = run(chained(0.0), draws=20).draws
    assert draws is not None
    assert (draws.step_ps == draws.answer_ps).all()
    assert draws.erring == 0


def check_exact(scenario: Scenario, count: int) -> None:
    """Without errors every draw is the answer, of the other engine and of ``Trace.memory``."""
    report = run(replace(scenario, engine="simpy"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simdev.costs.drawn.sigma_of", lambda error: 0.0)
        draws = draws_of(lowered(scenario), count, n_jobs=1)
    peaks = [memory.peak for memory in report.trace.memory]
    assert draws.step_ps.tolist() == [report.step_ps] * count
    assert draws.answer_ps == report.step_ps
    assert draws.peaks.tolist() == [peaks] * count
    assert draws.answer_peaks.tolist() == peaks


@settings(max_examples=40)
@given(drawn(make_world, ("fifo", "priority", "fixed", "program"), QUEUES, TRANSFERS))
def test_draws_without_errors_are_exact_in_any_world(world: World) -> None:
    check_exact(Scenario(world.graph, world.cluster, CostModel(), world.strategy), 2)


def answered(task_graph: TaskGraph, factor: np.ndarray) -> tuple[int, list[int]] | None:
    """The end and the peaks by the reference engine; None: deadlock, or too long to be told."""
    try:
        trace = simulate(with_factors(task_graph, factor), "simpy")
    except (DeadlockError, InputError):
        return None
    return trace.end_ps, [memory.peak for memory in trace.memory]


@settings(max_examples=60)
@given(task_graphs(), task_graphs(flows=True), st.integers(0, 2**32), st.sampled_from((0.2, 2, 9)))
def test_draws_one_after_another_are_those_of_the_reference_engine(
    queues: TaskGraph, flows: TaskGraph, seed: int, spread: float
) -> None:
    """Of flows on shared links, lags, zero times and deadlocks, whatever was drawn before."""
    for task_graph in queues, flows:
        normal = np.random.default_rng(seed).standard_normal((6, len(task_graph.tasks)))
        factors = [*np.exp(spread * normal), np.ones(len(task_graph.tasks))]
        redrawn = Redrawn(task_graph).answers(iter(factors))
        for factor, answer in zip(factors, redrawn, strict=True):
            drawn_answer = None if answer is None else (answer[0], answer[1].tolist())
            assert drawn_answer == answered(task_graph, factor)


def test_draws_that_last_too_long_are_refused() -> None:
    """Times that leave int64 would wrap round: 40 days, and up to hundreds of times as long."""
    scenario = chained(3.0, ns=40 * 86_400 * 10**9 // OPS)
    task_graph = lowered(scenario).step.task_graph
    factors = (np.full(len(task_graph.tasks), times) for times in (100.0, 1.0))
    assert [answer and answer[0] for answer in Redrawn(task_graph).answers(factors)] == [
        None,
        40 * 86_400 * 10**12,
    ]
    with pytest.raises(InputError, match="all times together exceed 53 days"):
        draws_of(lowered(scenario), 100)


# A loader, a pipeline over a graph, a policy, a large model, hosts, staging, splits.
EXAMPLES = (
    "resnet-50-4x-h100-loader", "bert-large-4x-v100-pipeline", "mixtral-8x7b-32x-h100",
    "gpt2-medium-4x-h100-pipeline", "alexnet-2x-gpu-staged", "inception-v3-branches-multicast",
    "nmt-4x-k80-placeto", "vgg-16-4x-p100-flexflow",
)  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_draws_without_errors_are_exact_in_examples(name: str) -> None:
    check_exact(load_scenario(name), 1)


def test_steps_that_repeat_are_drawn() -> None:
    scenario = replace(chained(0.3), steps="repeated")
    once, again = run(chained(0.3), draws=5).draws, run(scenario, draws=5).draws
    # In a chain on one device the period is the step.
    assert (once.step_ps == again.step_ps).all()


def test_draws_do_not_depend_on_threads_processes_or_their_number() -> None:
    question = lowered(load_scenario("alexnet-2x-gpu-staged"))
    few, many = draws_of(question, 7, 3, n_jobs=1), draws_of(question, 50, 3, n_jobs=2)
    assert (few.step_ps == many.step_ps[:7]).all()
    assert (few.peaks == many.peaks[:7]).all()
    assert (draws_of(question, 7, 4).step_ps != few.step_ps).all()
    code = (
        "from simdev import run; d = run('alexnet-2x-gpu-staged', draws=7, seed=3).draws;"
        "print(d.step_ps.tolist(), d.peaks.tolist())"
    )
    for hashes in "1", "2":
        environment = os.environ | {"PYTHONHASHSEED": hashes}
        answer = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stdout.strip() == f"{few.step_ps.tolist()} {few.peaks.tolist()}"


def test_a_scenario_a_hundredth_slower_loses_every_draw() -> None:
    faster, slower = (run(chained(0.3, ns=ns), draws=100).draws for ns in (10**6, 1_010_000))
    assert (faster.step_ps < slower.step_ps).all()


def test_further_rules_multiply() -> None:
    def doubled(task_graph: TaskGraph) -> Factors:
        return lambda draw: np.full(len(task_graph.tasks), 2.0 if draw else 1.0)

    question = lowered(chained(0.3))
    alone, more = draws_of(question, 3), draws_of(question, 3, more=[doubled])
    assert more.step_ps[0] == alone.step_ps[0]
    assert (np.abs(more.step_ps[1:] - 2 * alone.step_ps[1:]) <= OPS).all()


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match="draws: must be a whole number from 1 to 100,000, got -1"):
        run("alexnet-2x-gpu-staged", draws=-1)
    with pytest.raises(InputError, match="seed: must be a whole number from 0"):
        run("alexnet-2x-gpu-staged", draws=1, seed=-1)


def test_the_stability_of_an_order_by_hand() -> None:
    # The second beats the best in draw 0, and equals it in draw 1; the third never.
    times = np.array([[2.0, 2, 2, 2], [1, 2, 3, 3], [4, 4, 4, 4]])
    order = stability(times)
    assert order.beats.tolist() == [0.5, 0.375, 0.0]
    assert order.first.tolist() == [0.625, 0.375, 0.0]
    # Of 12 pairs 10 stand as in the answers, one is turned round, one is equal.
    assert order.kendall == pytest.approx(9 / 12)
    assert are_tied(times[0], times[1])
    assert not are_tied(times[0], times[2])
