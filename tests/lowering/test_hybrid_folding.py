"""Experts on a grid of ranks of their own (``etp``): groups, bytes, memory, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_steps import EXPERTS, SMALL, boxes, cluster_for, lowered, report_of
from simdev import load_scenario, run
from simdev.commands import main
from simdev.costs.collectives import CollectiveModel
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.ground.errors import InputError
from simdev.lowering.hybrid.durations import (
    EXPERT,
    EXPERT_DATA,
    EXPERT_TENSOR,
    RankGrid,
    rank_grid,
)
from simdev.nouns.models.large import footprint, layer, roles, shard_of
from simdev.nouns.models.large.transformer import Transformer
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.nouns.taskgraph import BUFFER_KINDS

# Twelve experts, so that groups of experts may lie across those of tp and of samples.
TWELVE = replace(EXPERTS, name="twelve", experts=12)
MOE_LAYERS = EXPERTS.layers - EXPERTS.dense_layers


def divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


@st.composite
def foldings(draw: st.DrawFn) -> tuple[Transformer, Parallelism]:
    dp, cp = draw(st.sampled_from([(1, 1), (2, 1), (4, 1), (3, 1), (1, 2), (2, 2)]))
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 1, 2]))
    devices = dp * cp * tp
    ep = draw(st.sampled_from([n for n in (1, 2, 3, 4, 6, 12) if devices % n == 0]))
    etp = draw(st.sampled_from([n for n in (1, 2, 4) if devices // ep % n == 0]))
    recompute, again = draw(st.sampled_from([
        ("none", ()), ("full", ()), ("selective", ("moe",)), ("selective", ("shared_experts",)),
    ]))  # fmt: skip
    model = replace(TWELVE, shared_experts=draw(st.integers(0, 1)), skew=draw(st.integers(1, 2)))
    return model, Parallelism(
        dp=dp, cp=cp, tp=tp, pp=pp, ep=ep, etp=etp, zero=draw(st.integers(0, 3)), flash=True,
        microbatches=draw(st.sampled_from([2, 4])), recompute=recompute,
        schedule=draw(st.sampled_from(["1F1B", "ZB-H1"])), overlap=draw(st.booleans()),
        bucket=draw(st.sampled_from([100_000, 500_000_000])),
        **({"recompute_modules": again} if again else {}),
    )  # fmt: skip


# Which ranks belong together


@pytest.mark.parametrize(
    ("degrees", "kind", "groups"),
    [
        # dp 2 x cp 2 x tp 4, experts on 2 x 4 x 2: etp innermost, then ep.
        ((2, 2, 4, 4, 2), EXPERT, [(0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15)]),
        ((2, 2, 4, 4, 2), EXPERT_TENSOR, [(n, n + 1) for n in range(0, 16, 2)]),
        ((2, 2, 4, 4, 2), EXPERT_DATA, [(n, n + 8) for n in range(8)]),
        ((2, 1, 2, 4, 1), EXPERT, [(0, 1, 2, 3)]),
        ((1, 1, 4, 2, 1), EXPERT_DATA, [(0, 2), (1, 3)]),
    ],
)
def test_experts_have_groups_of_their_own(
    degrees: tuple[int, ...], kind: int, groups: list[tuple[int, ...]]
) -> None:
    dp, cp, tp, ep, etp = degrees
    p = Parallelism(dp=dp, cp=cp, tp=tp, ep=ep, etp=etp)
    cluster = cluster_for(p.devices)
    place = {device: number for number, device in enumerate(cluster.workers)}
    members = rank_grid(cluster, p).members(kind, 0)
    assert [tuple(place[device] for device in group) for group in members] == groups


@pytest.mark.parametrize(("replicas", "tp"), [(2, 4), (3, 4), (6, 2), (8, 1)])
def test_groups_are_those_of_megatron(replicas: int, tp: int) -> None:
    """A grid of ranks by (replica of the experts, ep, etp), cut along one of them."""
    count = replicas * tp
    for ep, etp in product(divisors(count), repeat=2):
        if count % (ep * etp) == 0:
            grid = RankGrid((tuple(range(count)),), replicas, tp, ep, etp)
            table = np.arange(count).reshape(-1, ep, etp)
            for kind, axis in ((EXPERT_DATA, 0), (EXPERT, 1), (EXPERT_TENSOR, 2)):
                lines = np.moveaxis(table, axis, -1).reshape(-1, table.shape[axis])
                assert grid.members(kind, 0) == list(map(tuple, lines.tolist()))


def test_a_group_crosses_the_nodes_of_its_rank() -> None:
    """256 GPUs, tp 2 x pp 8: ep 32 takes the 32 of a rank, four machines of eight."""
    scenario = load_scenario({
        "graph": {"model": "deepseek-v3", "layers": 8, "length": 512},
        "cluster": {"preset": "dgx-h100", "nodes": 32},
        "strategy": {"pipeline": {"dp": 16, "tp": 2, "pp": 8, "ep": 32, "etp": 1}},
    })  # fmt: skip
    p = scenario.strategy.pipeline
    assert p is not None
    grid, workers = rank_grid(scenario.cluster, p), scenario.cluster.workers
    for rank in range(8):
        assert grid.members(EXPERT, rank) == [tuple(workers[32 * rank : 32 * (rank + 1)])]
    assert p.sharers == (16, 1)


# What all agree on


@settings(max_examples=40, deadline=None, derandomize=True)
@given(foldings())
def test_one_device_stands_for_all_that_are_alike(case: tuple[Transformer, Parallelism]) -> None:
    """Collapsed or not the same step, terms and peaks, valid by the checker, whether groups lie
    across each other or not.
    """
    model, p = case
    one, every = (report_of(model, p, symmetry) for symmetry in (True, False))
    assert one.step_ps == every.step_ps
    assert one.training.large.counted == len(every.trace.start)
    for short, long in zip(one.training.stages, every.training.stages, strict=True):
        assert dict(short.terms) == dict(long.terms)
        assert short.memory.peak == long.memory.peak
    assert len({memory.peak for memory in every.trace.memory}) <= p.pp
    for report in (one, every):
        assert check(report.trace.task_graph, report.trace) == ()


@settings(max_examples=10, deadline=None, derandomize=True)
@given(foldings())
def test_engines_agree(case: tuple[Transformer, Parallelism]) -> None:
    pytest.importorskip("numba")
    task_graph, _ = lowered(*case, symmetry=False)
    one, other = simulate(task_graph, "simpy"), simulate(task_graph, "compiled")
    assert (one.start == other.start).all()
    assert (one.finish == other.finish).all()


@pytest.mark.parametrize("fields", [{"dp": 2, "ep": 2}, {"sequence_parallel": False, "dp": 2}])
def test_parts_as_many_as_of_tp_are_none_of_their_own(fields: dict[str, Any]) -> None:
    plain, told = (Parallelism(tp=2, pp=2, etp=etp, **fields) for etp in (None, 2))
    for symmetry in (True, False):
        one, other = (lowered(EXPERTS, p, symmetry)[0] for p in (plain, told))
        for name in ("duration", "bytes", "source", "destination"):
            assert (getattr(one.tasks, name) == getattr(other.tasks, name)).all()
        assert list(one.tasks.name) == list(other.tasks.name)
        assert (one.tasks.successors.ids == other.tasks.successors.ids).all()
        assert (one.buffers.bytes == other.buffers.bytes).all()


def test_samples_and_experts_that_lie_across_each_other() -> None:
    """cp 3 and ep 2: the second group of experts has parts of both samples."""
    p, cluster = Parallelism(dp=2, cp=3, ep=2), boxes(6, 1)
    model = replace(EXPERTS, length=192)
    one, every = (report_of(model, p, symmetry, cluster) for symmetry in (True, False))
    assert one.step_ps == every.step_ps
    assert check(every.trace.task_graph, every.trace) == ()


# Bytes


def exchanged(p: Parallelism, model: Transformer = EXPERTS) -> tuple[Any, dict[str, list[int]]]:
    """The program's tasks on one device, and by name the bytes of its collectives in a layer of
    experts, one microbatch forward.
    """
    task_graph, plan = lowered(model, p)
    by_role: dict[str, list[int]] = {}
    for task, name in enumerate(task_graph.tasks.name):
        if name.startswith("0F0/layer_1/") and plan.role[task] in (roles.EXPERT, roles.TENSOR):
            role = "expert" if plan.role[task] == roles.EXPERT else "tensor"
            by_role.setdefault(role, []).append(int(task_graph.tasks.bytes[task]))
    return task_graph, by_role


def test_each_rank_sends_its_own_tokens() -> None:
    """128 tokens of 256 numbers of two bytes, each to two experts: a quarter of them on each rank
    of tp 4. Attention and the shared expert gather and scatter all tokens; nothing else does.
    """
    rows, words = 2 * (128 // 4) * 256 * 2, 2 * 128 * 256
    _, folded = exchanged(Parallelism(dp=2, tp=4, ep=8, etp=1))
    assert folded == {"expert": [rows, rows], "tensor": [words] * 4}
    _, plain = exchanged(Parallelism(dp=2, tp=4, ep=2))
    assert plain == {"expert": [rows, rows], "tensor": [words] * 2 + [3 * words] * 2}
    bare = replace(EXPERTS, shared_experts=0)
    assert exchanged(Parallelism(dp=2, tp=4, ep=8, etp=1), bare)[1]["tensor"] == [words] * 2


def test_parts_of_an_expert_gather_its_tokens() -> None:
    """Those of both ranks that have the other half of the same expert."""
    rows, words = 2 * (128 // 4) * 256 * 2, 2 * 128 * 256
    _, sent = exchanged(Parallelism(dp=2, tp=4, ep=4, etp=2))
    assert sent == {"expert": [rows, rows], "tensor": [words] * 4 + [2 * rows] * 2}
    _, alone = exchanged(Parallelism(dp=2, tp=1, ep=1, etp=2, sequence_parallel=False))
    assert alone == {"tensor": [2 * (2 * 128 * 256 * 2)] * 2}


def test_the_exchange_takes_as_long_as_among_the_group() -> None:
    """Eight of two machines, or four of one, beside the other machine's four."""
    cluster = cluster_for(8)
    model, rows = CollectiveModel(cluster), 2 * (128 // 4) * 256 * 2
    workers = cluster.workers
    groups = {8: [tuple(workers)], 4: [tuple(workers[:4]), tuple(workers[4:])]}
    for ep, (group, *beside) in groups.items():
        graph, plan = lowered(EXPERTS, Parallelism(dp=2, tp=4, ep=ep, etp=1), cluster=cluster)
        expected = model.cost("all_to_all", group, rows, beside).ps
        assert set(graph.tasks.duration[plan.role == roles.EXPERT]) == {expected}
        assert (plan.role == roles.EXPERT).sum() == 4 * MOE_LAYERS


# Work and memory


@pytest.mark.parametrize(
    ("tp", "ep", "etp"), [(4, 8, 1), (4, 2, 1), (4, 2, 2), (2, 2, 2), (1, 2, 2)]
)
def test_all_experts_together_do_the_same_work(tp: int, ep: int, etp: int) -> None:
    """What an expert's device computes on (tokens x width) is the same however it is cut."""
    model = replace(EXPERTS, shared_experts=0)
    folded, plain = (
        shard_of(model, Parallelism(dp=8 // tp, tp=tp, ep=n, etp=e, microbatch=4))
        for n, e in ((ep, etp), (1, None))
    )
    flops = [
        [
            sum(load.flops for load in getattr(layer(s, 1), part) if load.kind.startswith(names))
            for part in ("forward", "backward", "weight")
            for names in ("up", "down")
        ]
        for s in (folded, plain)
    ]
    assert flops[0] == flops[1]
    assert footprint(folded, 1).saved == footprint(plain, 1).saved
    assert footprint(folded, 1).workspace == footprint(plain, 1).workspace


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(("ep", "etp"), [(8, 1), (2, 1), (4, 2), (1, 8), (4, None), (1, 1)])
def test_all_devices_hold_the_experts_so_many_times(ep: int, etp: int | None, zero: int) -> None:
    """Eight devices, tp 2: eight experts of three matrices of 256 x 256 in each of seven layers,
    once for each replica of the experts, states once in all.
    """
    p = Parallelism(dp=4, tp=2, ep=ep, etp=etp, zero=zero)
    replicas = 8 // (ep * (etp or 2))
    shard = shard_of(EXPERTS, p)
    experts = 8 * 3 * 256 * 256
    others, here = shard.layer_parameters(1)
    assert p.sharers == (4, replicas)
    assert 8 * here == replicas * experts
    assert others == shard_of(EXPERTS, Parallelism(tp=2)).layer_parameters(1)[0]
    # Experts twice as wide differ by as much as they have.
    narrow, wide = (
        lasting(replace(EXPERTS, expert_inner=inner, shared_experts=0), p) for inner in (256, 512)
    )
    for kind, each, shared_from in LASTING:
        copies = 1 if zero >= shared_from else replicas
        assert wide[kind] - narrow[kind] == each * copies * MOE_LAYERS * experts


# Bytes of each parameter, and the least ZeRO that shares them out.
LASTING = ("parameters", 2, 3), ("gradients", 4, 2), ("optimizer state", 12, 1)


def lasting(model: Transformer, p: Parallelism) -> dict[str, int]:
    """Bytes that all devices together hold throughout, by kind."""
    buffers = lowered(model, p, symmetry=False)[0].buffers
    return {
        kind: int(buffers.bytes[(buffers.filler < 0) & (buffers.kind == number)].sum())
        for number, kind in enumerate(BUFFER_KINDS)
    }


def test_gradients_of_experts_are_reduced_over_their_replicas() -> None:
    """tp 4 alone: attention has one replica, experts on two of four devices have two."""
    graph, plan = lowered(EXPERTS, Parallelism(tp=4, ep=2, etp=1, zero=0))
    sums = graph.tasks.bytes[plan.role == roles.DATA]
    assert sorted(sums) == [4 * 4 * 3 * 256 * 256] * MOE_LAYERS
    _, plain = lowered(EXPERTS, Parallelism(tp=4))
    assert not (plain.role == roles.DATA).any()


# What is said of it


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"etp": 0}, "etp: must be a whole number from 1 to"),
        (
            {"dp": 2, "tp": 2, "ep": 8, "etp": 1},
            "etp: ep 8 x etp 1 = 8 parts of the experts do not divide dp x cp x tp 4",
        ),
        ({"dp": 2, "etp": 3}, "etp: ep 1 x etp 3 = 3 parts of the experts do not divide"),
        (
            {"tp": 2, "etp": 1, "sequence_parallel": False},
            "etp: 1 beside tp 2 needs sequence_parallel: ranks of tp send tokens of their own",
        ),
        ({"dp": 2, "tp": 2, "ep": 4}, "ep: 4 does not divide dp 2; the experts are shared out"),
    ],
)
def test_what_cannot_be_folded_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError) as error:
        Parallelism(**fields)
    assert [problem[: len(reason)] for problem in error.value.problems] == [reason]


def test_what_a_model_cannot_fold_is_refused() -> None:
    with pytest.raises(InputError, match="etp: small has no experts"):
        shard_of(SMALL, Parallelism(tp=2, etp=1))
    odd = replace(EXPERTS, expert_inner=258)
    with pytest.raises(InputError, match="etp: 4 does not divide expert_inner 258 of experts"):
        shard_of(odd, Parallelism(dp=4, etp=4))
    with pytest.raises(InputError, match="tp: 4 does not divide expert_inner 258 of experts"):
        shard_of(odd, Parallelism(tp=4, etp=1))
    # Without shared experts tp cuts none.
    assert shard_of(replace(odd, shared_experts=0), Parallelism(tp=4, etp=1)).expert_tp == 1
    with pytest.raises(InputError, match="ep: 16 does not divide the 8 experts of experts"):
        shard_of(EXPERTS, Parallelism(dp=4, tp=4, ep=16, etp=1))


def test_on_the_command_line_and_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    line = "simulate --model mixtral-8x7b --cluster dgx-h100 --tp 4 --dp 2 --ep 8 --etp 1"
    assert main(line.split()) in (0, 1)
    said = capsys.readouterr().out
    assert said.startswith("mixtral-8x7b: dp 2 x tp 4 x pp 1 x ep 8 x etp 1, 1 microbatches")
    pipeline = {"dp": 2, "tp": 4, "ep": 8, "etp": 1}
    graph = {"model": "mixtral-8x7b"}
    scenario = {"graph": graph, "cluster": "dgx-h100", "strategy": {"pipeline": pipeline}}
    report = run(load_scenario(scenario))
    assert f"{report.step_ps:,} ps" in said
    assert main([*line.split(), "--no-sequence-parallel"]) == 2
    assert "etp: 1 beside tp 4 needs sequence_parallel" in capsys.readouterr().err
