"""Plans scored the short way, a device for each rank, beside all devices and SimPy's engine."""

from __future__ import annotations

import random
from typing import Any

import pytest

import planned
from simdev.costs.collectives import collective_model
from simdev.execution.engine import simulate
from simdev.lowering.hybrid import lower_hybrid
from simdev.search.plan import Plan, Question, question_of
from simdev.search.plan.searching import score

DENSE, TIED = ({**graph, "layers": 4} for graph in (planned.DENSE, planned.TIED))
SPARSE = {
    "model": "mixtral-8x7b", "layers": 4, "length": 256, "hidden": 512, "heads": 8, "kv_heads": 8,
    "inner": 1024, "expert_inner": 512,
}  # fmt: skip
OFFLOAD: dict[str, Any] = {"offload": ["", "activations"], "host_bandwidth": "20 GB/s"}
WORLDS: list[tuple[dict[str, Any], str, int | None, dict[str, Any]]] = [
    (DENSE, "dgx-h100", 1, {}),
    (SPARSE, "dgx-a100-80", 2, {"zero": [1, 3]}),
    (TIED, "dgx-1v", 1, OFFLOAD),
    (DENSE, "p3-16xlarge", 4, {"tp": [1, 2, 4], "microbatch": 1}),
]
SIMPY = 20_000  # tasks that the reference engine runs in a second


def plans_of_world(world: int, count: int, seed: int) -> tuple[Question, list[Plan]]:
    graph, cluster, nodes, options = WORLDS[world]
    question = question_of(graph, cluster, 32 if nodes == 4 else 16, nodes)
    plans = planned.every_plan(planned.space_of(question, options))
    return question, random.Random(seed).sample(plans, count)


def check(world: int, count: int, seed: int = 0) -> int:
    """How many of so many plans ran in the reference engine, too."""
    question, plans = plans_of_world(world, count, seed)
    confirmed = 0
    collectives = collective_model(question.clusters[0])
    for plan in plans:
        row = score(question, plan)
        whole = question.model, plan.parallelism, collectives, question.costs[0], False
        task_graph, large = lower_hybrid(*whole)
        assert not large.collapsed
        trace = simulate(task_graph, "compiled")
        assert trace.end_ps == row["step_ps"], plan
        assert max(memory.peak for memory in trace.memory) == row["peak_bytes"], plan
        assert trace.feasible == row["fits"], plan
        if len(task_graph.tasks) < SIMPY and confirmed < count // 10 + 1:
            reference = simulate(task_graph, "simpy")
            assert reference.end_ps == row["step_ps"], plan
            confirmed += 1
    return confirmed


@pytest.mark.parametrize("world", range(len(WORLDS)))
def test_some_plans_are_those_of_all_devices(world: int) -> None:
    check(world, 3)


@pytest.mark.slow
@pytest.mark.parametrize("world", range(len(WORLDS)))
def test_500_random_plans_are_those_of_all_devices(world: int) -> None:
    assert check(world, 125, seed=1) > 5
