"""Groups of replicas (HSDP) and parameters kept from the forward on: groups, bytes, memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from hybrid_steps import DENSE, EXPERTS, boxes, lowered, report_of
from simdev.costs.collectives import collective_model
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.ground.errors import InputError
from simdev.lowering.hybrid.durations import (
    DATA,
    EXPERT_DATA,
    EXPERT_REPLICA,
    REPLICA,
    RankGrid,
)
from simdev.nouns.models.large import Transformer, roles, shard_of
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.nouns.taskgraph import BUFFER_KINDS, PERSISTENT


@pytest.mark.parametrize(
    ("dp", "cp", "tp", "groups", "ep", "etp"),
    [(8, 1, 1, 2, 4, 1), (4, 2, 2, 2, 2, 2), (4, 1, 4, 4, 2, 1), (6, 1, 2, 3, 2, 2)],
)
def test_groups_are_lines_of_the_mesh(
    dp: int, cp: int, tp: int, groups: int, ep: int, etp: int
) -> None:
    """Of torchtitan's (dp_replicate, dp_shard, cp, tp), and (dp_replicate, efsdp, ep, etp)."""
    count = dp * cp * tp
    grid = RankGrid((tuple(range(count)),), dp * cp, tp, ep, etp, cp, groups)
    mesh = np.arange(count).reshape(groups, dp // groups * cp, tp)
    experts = np.arange(count).reshape(groups, -1, ep * etp)
    for table, within, between in ((mesh, DATA, REPLICA), (experts, EXPERT_DATA, EXPERT_REPLICA)):
        for kind, axis in ((within, 1), (between, 0)):
            lines = np.moveaxis(table, axis, -1).reshape(-1, table.shape[axis])
            assert sorted(grid.members(kind, 0)) == sorted(map(tuple, lines.tolist()))


def sent(model: Transformer, p: Parallelism, name: str = "") -> Counter[int]:
    """How often so many bytes are sent between replicas, in queues whose names begin so."""
    task_graph, large = lowered(model, p)
    queues = [task_graph.resources[line[0]].name for line in task_graph.tasks.resources]
    rows = zip(large.role, task_graph.tasks.bytes, queues, strict=True)
    return Counter(
        int(size)
        for role, size, queue in rows
        if role == roles.DATA and (queue.startswith(name) if name else "data" in queue)
    )


@pytest.mark.parametrize(("software", "sums"), [("torchtitan", 3), ("megatron", 1)])
@pytest.mark.parametrize("groups", [2, 4])
def test_messages_of_zero_3_by_hand(groups: int, software: str, sums: int) -> None:
    """Each of three microbatches gathers each layer forward and backward in 2 bytes a parameter,
    and reduces it; its share goes over the groups in the same bytes, by FSDP2 each time.
    """
    model, n = replace(DENSE, software=software, tied=False), DENSE.layers
    p = Parallelism(dp=8, dp_replicate=groups, zero=3, microbatches=3)
    shard = shard_of(model, p)
    layer, _ = shard.layer_parameters(0)
    assert sent(model, p)[2 * layer] == 3 * 3 * n
    ends = [shard.embedding_parameters, shard.classifier_parameters]
    # Those of both ends together, where they wait for the last microbatch.
    ends = ends if sums > 1 else [sum(ends)]
    shares = {2 * -(-size * groups // 8): sums for size in ends}
    assert sent(model, p, "replicas") == Counter({2 * -(-layer * groups // 8): n * sums, **shares})


def test_zero_1_sums_shares_once_a_step() -> None:
    p = Parallelism(dp=8, dp_replicate=2, zero=1, microbatches=3)
    layer, _ = shard_of(DENSE, p).layer_parameters(0)
    assert sent(DENSE, p, "replicas")[4 * -(-layer // 4)] == DENSE.layers
    assert sent(DENSE, p)[2 * layer] == DENSE.layers  # gathered
    assert sent(DENSE, p)[4 * layer] == DENSE.layers  # reduced


def test_experts_that_nobody_shares_are_summed_whole() -> None:
    """ep 4 of dp 8 in 2 groups: of an expert there are two replicas, one in each group."""
    p = Parallelism(dp=8, ep=4, dp_replicate=2, zero=2, microbatches=2)
    assert p.sharers == (4, 1)
    for software, sums in (("torchtitan", 2), ("megatron", 1)):
        model = replace(EXPERTS, software=software)
        _, experts = shard_of(model, p).layer_parameters(model.layers - 1)
        times = sums * (model.layers - model.dense_layers)
        assert sent(model, p, "experts' replicas") == Counter({2 * experts: times})
        assert sent(model, p, "experts' data") == Counter()


def test_groups_of_two_machines_share_the_network_between_them() -> None:
    """Pairs of devices of the two machines sum their shares, four at a time."""
    cluster, p = boxes(4, 2), Parallelism(dp=8, dp_replicate=2, zero=3)
    tasks, resources = (task_graph := lowered(DENSE, p, False, cluster)[0]).tasks, "replicas"
    layer, _ = shard_of(DENSE, p).layer_parameters(0)
    first, *beside = [(cluster.workers[n], cluster.workers[n + 4]) for n in range(4)]
    model = collective_model(cluster)
    expected = model.cost("all_reduce", first, 2 * -(-layer // 4), beside).ps
    names = [task_graph.resources[line[0]].name for line in tasks.resources]
    of_layers = [
        int(tasks.duration[n])
        for n, name in enumerate(names)
        if name.startswith(resources) and "/layer_" in f"/{tasks.name[n]}"
    ]
    assert len(of_layers) == 4 * DENSE.layers
    assert set(of_layers) == {expected}


CASES = [
    (DENSE, {"dp": 8}), (DENSE, {"dp": 4, "tp": 2}), (DENSE, {"dp": 4, "pp": 2}),
    (replace(DENSE, tied=False, software="torchtitan"), {"dp": 4, "pp": 2}),
    (EXPERTS, {"dp": 8, "ep": 2}), (EXPERTS, {"dp": 8, "ep": 8, "etp": 1, "tp": 2}),
    (replace(EXPERTS, software="torchtitan"), {"dp": 8, "ep": 4}),
    (EXPERTS, {"dp": 4, "cp": 2, "ep": 2, "flash": True}),
]  # fmt: skip


@pytest.mark.parametrize(("case", "zero"), list(product(CASES, [1, 2, 3])))
def test_one_device_stands_for_all_and_engines_agree(
    case: tuple[Transformer, dict[str, Any]], zero: int
) -> None:
    model, degrees = case
    p = Parallelism(**degrees, dp_replicate=2, zero=zero, microbatches=4, in_flight=zero % 2)
    one, every = (report_of(model, p, symmetry) for symmetry in (True, False))
    assert one.step_ps == every.step_ps
    assert {m.peak for m in one.trace.memory} == {m.peak for m in every.trace.memory}
    task_graph = every.trace.task_graph
    assert check(task_graph, every.trace) == ()
    assert simulate(task_graph, "compiled").end_ps == every.step_ps


def lasting(p: Parallelism) -> dict[str, int]:
    """Bytes by kind that a device holds throughout."""
    buffers = lowered(DENSE, p)[0].buffers
    held = np.flatnonzero(np.asarray(buffers.filler) == PERSISTENT)
    return {BUFFER_KINDS[buffers.kind[n]]: int(buffers.bytes[n]) for n in held}


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_device_holds_what_its_group_shares_out(zero: int) -> None:
    """Two groups hold as much as half as many replicas."""
    groups = Parallelism(dp=8, dp_replicate=2, zero=zero)
    assert lasting(groups) == lasting(Parallelism(dp=4, zero=zero))


def test_what_stays_from_the_forward_is_gathered_once() -> None:
    chosen = {"dp": 8, "zero": 3, "microbatches": 2}
    kept, again = (Parallelism(**chosen, reshard_after_forward=is_) for is_ in (False, True))
    layer, _ = shard_of(DENSE, kept).layer_parameters(0)
    # Gathered forward and reduced, or gathered backward too.
    assert sent(DENSE, kept)[2 * layer] == 2 * 2 * DENSE.layers
    assert sent(DENSE, again)[2 * layer] == 3 * 2 * DENSE.layers
    peaks = [max(m.peak for m in report_of(DENSE, p).trace.memory) for p in (kept, again)]
    # All layers are there when the backward begins: of the others two at most.
    assert peaks[0] - peaks[1] >= (DENSE.layers - 2) * 2 * layer


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"dp": 8, "dp_replicate": 3}, "dp_replicate: 3 does not divide dp 8"),
        (
            {"dp": 8, "ep": 8, "dp_replicate": 2},
            "dp_replicate: 2 does not divide the 1 replicas of the experts",
        ),
        (
            {"dp": 8, "dp_replicate": 2, "zero": 0},
            "dp_replicate: 2 of dp 8: zero 0 shares nothing out among 4 replicas",
        ),
        (
            {"dp": 8, "dp_replicate": 8},
            "dp_replicate: 8 of dp 8: zero 1 shares nothing out among 1 replicas",
        ),
        ({"dp_replicate": 0}, "dp_replicate: must be a whole number from 1 to 1,048,576, got 0"),
    ],
)
def test_what_groups_cannot_be(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        Parallelism(**fields)
    assert caught.value.problems == (problem,)


def test_a_pipeline_keeps_nothing_between_microbatches() -> None:
    p = Parallelism(dp=2, pp=2, zero=3, microbatches=2, reshard_after_forward=False)
    with pytest.raises(InputError, match="reshard_after_forward: ranks of a pipeline keep"):
        lowered(DENSE, p)
